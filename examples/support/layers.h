// --layers: the number of layers of a model, or the attention of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/base/number.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

/// A run of equal layers.
struct LayerRun {
  AttentionOptions attention;
  std::int64_t count = 1;
  std::string entry = {};  // from a list; empty: from a number

  /// Heads of queries, and of keys and values, in this model.
  std::int64_t heads(const nn::LanguageModelConfig& model) const {
    return attention.heads ? attention.heads : model.heads;
  }
  std::int64_t kv_heads(const nn::LanguageModelConfig& model) const {
    return attention.kv_heads ? attention.kv_heads : attention.heads ? attention.heads : model.kv_heads;
  }
};

/// A number of layers of the kind of --attention, or a list:
///
///   list   entry{,entry}                        "5*window:512+rope,1*causal+nope"
///   entry  [N*]part{+part}                      exactly one part is a kind of attention
///   part   KIND[:VALUE...]                      values of its options in their order, lists with /: "window:512"
///          rope[:BASE[:SCALING:FACTOR[:TRAINED]]]   linear, ntk, or yarn with the context that was trained
///          nope                                 no positions; "nope:causal" is "nope+causal"
///          softcap:X  sinks  qk-norm  heads:N  kv-heads:N
class LayerList {
 public:
  static constexpr std::int64_t most = 65536;  // layers of a list

  LayerList(std::int64_t count) : text_(std::to_string(count)) {}  // NOLINT: a number is one
  explicit LayerList(std::string text) : text_(std::move(text)) {}

  /// The original text.
  const std::string& text() const { return text_; }
  bool is_number() const { return number_in<std::int64_t>(text_).has_value(); }
  /// The number of layers. Throws ValueError as runs() does.
  std::int64_t count() const;
  /// `usual` repeated, or the entries, each based on `usual`. Throws ValueError, one sentence with the entry and its
  /// place, for an invalid entry and for lists of over `most` layers.
  std::vector<LayerRun> runs(const AttentionOptions& usual) const;

 private:
  std::string text_;
};

/// "window of 512", "5 times window of 512; causal, no positions".
std::string describe_layers(const std::vector<LayerRun>& runs, std::int64_t context);
/// The distinct kinds of attention.
std::vector<std::string> kinds_of(const std::vector<LayerRun>& runs);
/// Throws ValueError, one sentence with the option, the entry and its place, if a layer of a list does not fit a model
/// of this width, context and heads.
void check_layers(const std::vector<LayerRun>& runs, const nn::LanguageModelConfig& model, const std::string& program);
/// Throws ValueError if both --attention and a list of layers are given.
void check_one_source(const LayerList& layers, const std::set<std::string>& given);

/// One of the compared models.
struct Contender {
  std::string name;  // the kind, or the list
  LayerList layers;
  std::string kind;  // for a number of layers
};
/// The same number of layers for each of `kinds` (separated by commas), or lists of layers (separated by semicolons).
/// Throws ValueError, one sentence, for duplicates and invalid kinds.
std::vector<Contender> contenders_of(const LayerList& layers, const std::string& kinds, const std::string& program);

/// The entry for each layer; one if all are equal. `output_deviation`, `processes` as in AttentionOptions::spec().
std::vector<attention::MixerSpec> specs_of(const std::vector<LayerRun>& runs, std::int64_t context,
                                           const std::string& program, double output_deviation = 0.0,
                                           const attention::RingSetup& processes = {});

}  // namespace poolgrad::examples
