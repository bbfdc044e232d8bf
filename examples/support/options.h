// Options common to programs: attention, memory, and the command line parser.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/modules/multihead.h"
#include "attention/pattern/pattern.h"
#include "nn/language_model.h"

namespace CLI {
class App;
}

namespace poolgrad::examples {

/// The attention of a layer. All kinds are causal: programs here predict the next token.
struct AttentionOptions {
  std::string attention = "window";                     // see attention_names()
  std::int64_t window = 256;                            // visible positions, itself included; in blocks, on both sides
  std::vector<std::int64_t> segments = {}, rates = {};  // dilated; empty: segments_for(), rates_for()
  std::int64_t block = 64;                              // positions of a block
  std::int64_t count = 16;                              // nsa: selected blocks, its own included
  std::vector<std::int64_t> offsets = {0, 1, 2, 4};     // block_sparse: blocks back
  std::int64_t global = 64;                             // global_local: first positions, visible to all
  std::int64_t stride = 64;                             // strided
  double density = 0.25;                                // random: blocks kept
  std::int64_t ring_size = 4;                           // ring: ranks, within this process
  std::string layout = "zigzag";                        // ring: contiguous, zigzag or striped
  std::int64_t state_chunk = 64;                        // delta, gla: positions computed by products
  std::int64_t conv = 4;                                // delta, gla: taps of the short convolution
  std::uint64_t seed = 0;                               // random: seed of the blocks; not an option
  // Only --layers sets these; see LayerList.
  std::optional<RopeOptions> rope = RopeOptions();  // none: no positions
  std::optional<double> softcap = {};
  bool sinks = false, qk_norm = false;
  std::int64_t heads = 0, kv_heads = 0;  // 0: the model's

  /// Whether a recurrence takes the place of attention: the gated delta rule or gated linear attention.
  bool is_recurrent() const { return attention == "delta" || attention == "gla"; }
  /// The pattern for sequences of at most `context` positions; causal for a recurrence. Throws ValueError, one
  /// sentence.
  attention::Pattern pattern(std::int64_t context, const std::string& program) const;
  /// A spec with the pattern, or a ring of it, between processes if `processes` has a communicator. `output_deviation`
  /// as in MultiheadOptions.
  attention::MixerSpec spec(std::int64_t context, const std::string& program, double output_deviation = 0.0,
                            const attention::RingSetup& processes = {}) const;
  /// "window of 256", "dilated(w 512 2048, r 1 4) & causal", "causal over a zigzag ring of 4, no positions".
  std::string describe(std::int64_t context) const;
  /// The effective branches. The default segments are 256, a length that holds the context, and one in between. Their
  /// rates are 1, 2 and 4, or more if a segment would have over 8192 keys. The work of a step then grows linearly with
  /// the context (LongNet, Ding et al. 2023).
  std::vector<std::int64_t> segments_for(std::int64_t context) const;
  std::vector<std::int64_t> rates_for(std::int64_t context) const;
};

/// Throws ValueError, "[train] --batch must be at least 1, but is 0", for the first smaller value.
void check_at_least_one(const std::string& program,
                        std::initializer_list<std::pair<const char*, std::int64_t>> options);

/// The values of --attention: "causal", "dense" (the same, as all kinds are causal), "window", "dilated",
/// "block_sparse", "global_local", "strided", "random", "ring", "delta", "gla", "nsa".
const std::vector<std::string>& attention_names();
/// Throws ValueError that lists the names.
void check_attention_name(const std::string& name, const std::string& program, const std::string& option);

/// The kinds of attention with this option, such as "block_sparse, global_local, random" for "block"; "" for an option
/// unrelated to attention.
std::string_view attention_kinds_of(std::string_view option);
/// Whether one of these kinds has the option. True for an option unrelated to attention.
bool is_of_attention(std::string_view option, const std::vector<std::string>& kinds);
/// Throws ValueError for an option in `given` (without dashes) that none of these kinds has.
void check_attention_options(const std::set<std::string>& given, const std::vector<std::string>& kinds);

/// Calls f(name, member, help) for every option except --attention, whose help is its list of names. Options may be
/// const.
template <class Options, class F>
void for_each_attention_setting(Options& o, F&& f) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    f(name, value, std::string(attention_kinds_of(name)) + ": " + help);
  };
  add("window", o.window, "positions that each position sees, itself included (global_local: on both sides)");
  add("segments", o.segments, "lengths of segments, such as 512,2048,8192 (default: up to the context)");
  add("rates", o.rates,
      "one dilation rate per segment (default: 1,2,4, or more where a segment would have over 8192 keys)");
  add("block", o.block, "positions of a block, a multiple of 16");
  add("count", o.count, "selected blocks, its own included");
  add("offsets", o.offsets, "visible blocks, counted backwards, such as 0,1,2,4");
  add("global", o.global, "first positions, visible to all");
  add("stride", o.stride, "the last N positions, and every N-th before");
  add("density", o.density, "fraction of blocks kept, drawn by --seed");
  add("ring-size", o.ring_size, "ranks that share the sequence, all in this process");
  add("state-chunk", o.state_chunk, "positions that are computed by products between two states");
  add("conv", o.conv, "last inputs that the short convolution of queries, keys and values sees");
  add("layout", o.layout, "positions of each rank: contiguous, zigzag or striped (also of --parallel ring)");
}
/// A callback f(name, member, help) that adds each option to a command line. Splits lists at commas.
template <class App>
auto setting_adder(App& app) {
  return [&app](const std::string& name, auto& value, const std::string& help) {
    if constexpr (std::is_same_v<decltype(value), bool&>) {
      app.add_flag("--" + name, value, help);
    } else if constexpr (requires { value.text(); }) {  // types constructed from text
      using Value = std::remove_reference_t<decltype(value)>;
      app.template add_option_function<std::string>(
             "--" + name, [&value](const std::string& text) { value = Value(text); }, help)
          ->default_str(value.text());
    } else {
      auto* option = app.add_option("--" + name, value, help);
      if constexpr (std::is_same_v<decltype(value), std::vector<std::int64_t>&>) option->delimiter(',');
    }
  };
}

/// The most similar name by edit distance (insert, delete, replace, swap), or the only one with this prefix; "" if the
/// distance is above a third of its letters.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

/// Rethrows the current exception as of_option() describes.
[[noreturn]] void rethrow_of(const std::string& option);
/// Calls f() on the value of an option. Errors then name `option`, such as "--dtype", instead of the throwing function:
/// "[--dtype] unknown dtype 'f8': ...". FileError, DeviceError and OutOfMemoryError keep their type; others become
/// ValueError. Keeps a message that already names an option.
template <class F>
auto of_option(const std::string& option, const F& f) {
  try {
    return f();
  } catch (const Error&) {
    rethrow_of(option);
  }
}

/// Parses like CLI::App::parse(), which clamps numbers that a type cannot hold: throws CLI::ParseError for them. The
/// message for an unknown option or command suggests the most similar one.
void read_command_line(CLI::App& app, int argc, const char* const* argv);
/// The same, and prints the message, on rank 0 alone under mpirun or srun. Returns the exit code if the program must
/// end at once (--help, an error), else -1.
int parse_command_line(CLI::App& app, int argc, const char* const* argv);
/// The names, without dashes, of the given options.
std::set<std::string> options_given(const CLI::App& app);
/// The number in the first of these environment variables that has one; -1 if none has.
int number_in_environment(std::initializer_list<const char*> names);

/// Parses "90s", "4min", "1.5h", "250ms", "3us", "20ns" to seconds, not negative; none for other text.
std::optional<double> parse_seconds(const std::string& text);

/// "cpu"; "cuda:N", or "cuda" for the first; "auto": the first GPU if there is one, else the cpu; "sim:SIZE" or
/// "sim:SIZE,like=cpu": a device of that many bytes without arithmetic, with a GPU's pages or this machine's. Throws
/// ValueError for other text, and DeviceError with the reason for an unusable GPU. A program that needs arithmetic
/// passes the missing result ("nothing is learned"), and sim is refused with it.
Device parse_device(const std::string& text, const std::string& program, const char* missing_on_sim = nullptr);
inline constexpr const char* computing_device_help = "cpu, cuda:N, or auto: a GPU if there is one";

/// The compute engines of a device. For sim, those of the cpu.
struct Engines {
  std::string machine;  // "2 threads", "NVIDIA H100 80GB HBM3, compute capability 9.0, ..."
  std::string products, attention;
  std::string reason = {};  // why attention uses its instruction set; empty without a choice

  /// "2 threads, products by poolgrad, attention by avx512 (chosen by POOLGRAD_ISA)".
  std::string to_string() const;
};
Engines engines_of(Device device);

/// Empties a device's pool and resets its peaks and hash. Sets a budget such as "512MiB" (empty: its own) for its
/// lifetime.
class PoolGuard {
 public:
  PoolGuard(Device device, const std::string& budget);
  ~PoolGuard();
  PoolGuard(const PoolGuard&) = delete;
  PoolGuard& operator=(const PoolGuard&) = delete;

  CachingAllocator& operator*() const { return pool_; }

 private:
  CachingAllocator& pool_;
  std::size_t budget_;
};

}  // namespace poolgrad::examples
