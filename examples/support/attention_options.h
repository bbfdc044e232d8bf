// Which attention a program is told to use: one set of options, one set of checks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/pattern.h"
#include "nn/language_model.h"

namespace CLI {
class App;
}

namespace poolgrad::examples {

/// All of them look back only: programs here train on the next token.
struct AttentionOptions {
  std::string attention = "window";  // see attention_names()
  std::int64_t window = 256;         // positions that a position sees, itself included; around it in blocks
  std::vector<std::int64_t> segments = {}, rates = {};  // dilated; empty: segments_for()
  std::int64_t block = 64;                              // positions of a block
  std::vector<std::int64_t> offsets = {0, 1, 2, 4};     // block_sparse: blocks back
  std::int64_t global = 64;                             // global_local: first positions that all see
  std::int64_t stride = 64;                             // strided
  double density = 0.25;                                // random: blocks kept
  std::int64_t ring_size = 4;                           // ring: ranks, within this process
  std::string layout = "zigzag";                        // ring: contiguous, zigzag or striped

  /// The pattern for sequences of at most `context` positions. Throws ValueError, one sentence.
  attention::Pattern pattern(std::int64_t context, const std::string& program) const;
  /// Makes MultiheadAttention with the pattern, or a ring of it. `output_deviation` as there.
  nn::MixerFactory mixer(std::int64_t context, const std::string& program, double rope_base,
                         double output_deviation) const;
  /// "window of 256", "dilated(w 512 2048, r 1 4) & causal", "causal over a zigzag ring of 4".
  std::string describe(std::int64_t context) const;
  /// The branches in force. Where none are given: 256, a length that holds the context, and one between them, with
  /// rates 1, 2 and 4.
  std::vector<std::int64_t> segments_for(std::int64_t context) const;
  std::vector<std::int64_t> rates_or_default() const;
};

/// What --attention may be: "causal", "dense" (the same: nothing looks ahead), "window", "dilated", "block_sparse",
/// "global_local", "strided", "random", "ring".
const std::vector<std::string>& attention_names();
/// Throws ValueError that lists the names.
void check_attention_name(const std::string& name, const std::string& program, const std::string& option);

/// Adds every option but --attention itself, whose default and meaning differ between programs.
void add_attention_options(CLI::App& app, AttentionOptions& options);

/// Calls f(name, member) for each option, --attention first; Options may be const.
template <class Options, class F>
void for_each_attention_setting(Options& o, F&& f) {
  f("attention", o.attention);
  f("window", o.window);
  f("segments", o.segments);
  f("rates", o.rates);
  f("block", o.block);
  f("offsets", o.offsets);
  f("global", o.global);
  f("stride", o.stride);
  f("density", o.density);
  f("ring-size", o.ring_size);
  f("layout", o.layout);
}

}  // namespace poolgrad::examples
