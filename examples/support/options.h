// What programs are told alike: which attention, how much memory, and how a command line is read.
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

/// The attention of a layer. All kinds look back only: programs here train on the next token.
struct AttentionOptions {
  std::string attention = "window";  // see attention_names()
  std::int64_t window = 256;         // positions that a position sees, itself included; around it in blocks
  std::vector<std::int64_t> segments = {}, rates = {};  // dilated; empty: segments_for(), rates_for()
  std::int64_t block = 64;                              // positions of a block
  std::vector<std::int64_t> offsets = {0, 1, 2, 4};     // block_sparse: blocks back
  std::int64_t global = 64;                             // global_local: first positions that all see
  std::int64_t stride = 64;                             // strided
  double density = 0.25;                                // random: blocks kept
  std::int64_t ring_size = 4;                           // ring: ranks, within this process
  std::string layout = "zigzag";                        // ring: contiguous, zigzag or striped
  std::uint64_t seed = 0;                               // random: decides the blocks; no option of its own
  // What --layers alone can say; see LayerList.
  std::optional<RopeOptions> rope = RopeOptions();  // none: no positions
  std::optional<double> softcap = {};
  bool sinks = false, qk_norm = false;
  std::int64_t heads = 0, kv_heads = 0;  // 0: the model's

  /// The pattern for sequences of at most `context` positions. Throws ValueError, one sentence.
  attention::Pattern pattern(std::int64_t context, const std::string& program) const;
  /// With the pattern, or a ring of it, between processes where `processes` has a communicator. `output_deviation` as
  /// in MultiheadOptions.
  attention::MixerSpec spec(std::int64_t context, const std::string& program, double output_deviation = 0.0,
                            const attention::RingSetup& processes = {}) const;
  /// "window of 256", "dilated(w 512 2048, r 1 4) & causal", "causal over a zigzag ring of 4, no positions".
  std::string describe(std::int64_t context) const;
  /// The branches in force. Where none are given: 256, a length that holds the context, and one between them, with
  /// rates 1, 2 and 4, or more where a segment would have over 8192 keys: a step's work then grows with the context,
  /// not with its square (LongNet, Ding et al. 2023).
  std::vector<std::int64_t> segments_for(std::int64_t context) const;
  std::vector<std::int64_t> rates_for(std::int64_t context) const;
};

/// Throws ValueError, "[train] --batch must be at least 1, but is 0", for the first that is less.
void check_at_least_one(const std::string& program,
                        std::initializer_list<std::pair<const char*, std::int64_t>> options);

/// What --attention may be: "causal", "dense" (the same: nothing looks ahead), "window", "dilated", "block_sparse",
/// "global_local", "strided", "random", "ring".
const std::vector<std::string>& attention_names();
/// Throws ValueError that lists the names.
void check_attention_name(const std::string& name, const std::string& program, const std::string& option);

/// The kinds of attention that use an option, such as "block_sparse, global_local, random" for "block"; "" for an
/// option that does not concern attention.
std::string_view attention_kinds_of(std::string_view option);
/// Whether one of these kinds uses the option. True for an option that does not concern attention.
bool is_of_attention(std::string_view option, const std::vector<std::string>& kinds);
/// Throws ValueError for an option in `given`, by its name without dashes, that none of these kinds uses.
void check_attention_options(const std::set<std::string>& given, const std::vector<std::string>& kinds);

/// Calls f(name, member, help) for every option but --attention itself, whose help is the list of its names. Options
/// may be const.
template <class Options, class F>
void for_each_attention_setting(Options& o, F&& f) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    f(name, value, std::string(attention_kinds_of(name)) + ": " + help);
  };
  add("window", o.window, "positions that one attends to, itself included (global_local: around it)");
  add("segments", o.segments, "lengths of segments, such as 512,2048,8192 (default: up to the context)");
  add("rates", o.rates,
      "one dilation rate per segment (default: 1,2,4, or more where a segment would have over 8192 keys)");
  add("block", o.block, "positions of a block, a multiple of 16");
  add("offsets", o.offsets, "how many blocks back to look, such as 0,1,2,4");
  add("global", o.global, "first positions that all attend to");
  add("stride", o.stride, "the last N positions, and every N-th before");
  add("density", o.density, "fraction of blocks kept; --seed decides which");
  add("ring-size", o.ring_size, "ranks that share the sequence, all in this process");
  add("layout", o.layout, "positions of each rank: contiguous, zigzag or striped (also of --parallel ring)");
}
/// For the functions that call f(name, member, help): adds each to a command line. Lists are read with commas.
template <class App>
auto setting_adder(App& app) {
  return [&app](const std::string& name, auto& value, const std::string& help) {
    if constexpr (std::is_same_v<decltype(value), bool&>) {
      app.add_flag("--" + name, value, help);
    } else if constexpr (requires { value.text(); }) {  // a type that is made of a text
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

/// The name that `word` is nearest to, by the edits (a letter more, less, another, or two exchanged) that make one of
/// the other, or the only one that begins with it; "" where that takes more edits than a third of its letters.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

/// Rethrows the error that is being handled, as of_option() says.
[[noreturn]] void rethrow_of(const std::string& option);
/// Calls f() on the value of an option. Its errors then name `option`, such as "--dtype", in place of the function that
/// threw them: "[--dtype] unknown dtype 'f8': ...". FileError, DeviceError and OutOfMemoryError keep their type, others
/// become ValueError. A message that names an option already stays as it is.
template <class F>
auto of_option(const std::string& option, const F& f) {
  try {
    return f();
  } catch (const Error&) {
    rethrow_of(option);
  }
}

/// Reads a command line as CLI::App::parse() does, which takes the nearest number for one that a type does not hold:
/// throws CLI::ParseError for such, too. The message of an unknown option or command suggests the nearest one.
void read_command_line(CLI::App& app, int argc, const char* const* argv);
/// The same, and prints the message, on rank 0 alone where mpirun or srun has started several. Returns the exit code if
/// the program is to end at once (--help, a fault), else -1.
int parse_command_line(CLI::App& app, int argc, const char* const* argv);
/// The names, without dashes, of the options that the command line had.
std::set<std::string> options_given(const CLI::App& app);
/// The number that the first of these variables of the environment has; -1 where none has one.
int number_in_environment(std::initializer_list<const char*> names);

/// "90s", "4min", "1.5h", "250ms", "3us", "20ns" -> seconds, not negative; nothing for what is no time.
std::optional<double> parse_seconds(const std::string& text);

/// "cpu"; "cuda:N" or "cuda", the first; "auto": the first GPU where there is one, else the cpu; "sim:SIZE" or
/// "sim:SIZE,like=cpu": a device of that many bytes without arithmetic, with a GPU's pages or the machine's. Throws
/// ValueError for anything else, and DeviceError with the reason where a GPU cannot be used. A program that learns or
/// measures says what is missing on sim ("nothing is learned"), which is then refused with it.
Device parse_device(const std::string& text, const std::string& program, const char* missing_on_sim = nullptr);
inline constexpr const char* computing_device_help = "cpu, cuda:N, or auto: a GPU where there is one";

/// What computes on a device. On sim nothing does: what would on the cpu.
struct Engines {
  std::string machine;  // "2 threads", "NVIDIA H100 80GB HBM3, compute capability 9.0, ..."
  std::string products, attention;
  std::string reason = {};  // of the instruction set that attention uses; empty where there was no choice

  /// "2 threads, products by poolgrad, attention by avx512 (named by POOLGRAD_ISA)".
  std::string to_string() const;
};
Engines engines_of(Device device);

/// A device's pool, empty and with its peaks and hash reset at first, under a budget such as "512MiB" (empty: its own)
/// for as long as the guard lives.
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
