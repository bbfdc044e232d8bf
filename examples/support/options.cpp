#include "examples/support/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string_view>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"
#include "examples/support/console.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

using attention::Pattern;

constexpr std::int64_t most_ranks = 1024, most_keys_of_a_branch = 8192;

const std::vector<std::string>& attention_names() {
  static const std::vector<std::string> names{"causal",  "dense",  "window", "dilated", "block_sparse", "global_local",
                                              "strided", "random", "ring",   "delta",   "gla",          "nsa"};
  return names;
}

void check_attention_name(const std::string& name, const std::string& program, const std::string& option) {
  const auto& names = attention_names();
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ValueError(
        fmt::format("[{}] {} must be one of {}, but is {}", program, option, fmt::join(names, ", "), printable(name)));
}

std::string_view attention_kinds_of(std::string_view option) {
  static constexpr std::pair<std::string_view, std::string_view> kinds[] = {
      {"window", "window, global_local, nsa"},
      {"segments", "dilated"},
      {"rates", "dilated"},
      {"block", "block_sparse, global_local, random, nsa"},
      {"count", "nsa"},
      {"offsets", "block_sparse"},
      {"global", "global_local"},
      {"stride", "strided"},
      {"density", "random"},
      {"ring-size", "ring"},
      {"state-chunk", "delta, gla"},
      {"conv", "delta, gla"},
      {"layout", "ring"}};
  const auto* const found = std::ranges::find(kinds, option, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kinds) ? std::string_view() : found->second;
}

bool is_of_attention(std::string_view option, const std::vector<std::string>& kinds) {
  const std::string_view users = attention_kinds_of(option);
  const std::vector<std::string> names = split(users, ',');
  return users.empty() || std::ranges::any_of(kinds, [&](const std::string& kind) {
           return std::ranges::any_of(names, [&](const std::string& name) { return name.ends_with(kind); });
         });
}

void check_attention_options(const std::set<std::string>& given, const std::vector<std::string>& kinds) {
  for (const std::string& option : given)
    if (!is_of_attention(option, kinds))
      throw ValueError(fmt::format("[--{}] this option is only for --attention {}, not for {}", option,
                                   attention_kinds_of(option), fmt::join(kinds, ", ")));
}

std::vector<std::int64_t> AttentionOptions::segments_for(std::int64_t context) const {
  if (!segments.empty()) return segments;
  const std::int64_t shortest = 256;
  const auto longest =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(context, shortest))));
  std::int64_t middle = shortest;
  while (middle * middle < shortest * longest) middle *= 2;
  return {shortest, middle, longest};
}

std::vector<std::int64_t> AttentionOptions::rates_for(std::int64_t context) const {
  if (!rates.empty()) return rates;
  std::vector<std::int64_t> result{1, 2, 4};
  const std::vector<std::int64_t> lengths = segments_for(context);
  for (std::size_t i = 0; i < std::min(result.size(), lengths.size()); ++i)
    result[i] = std::max(result[i], lengths[i] / most_keys_of_a_branch);
  return result;
}

void check_at_least_one(const std::string& program,
                        std::initializer_list<std::pair<const char*, std::int64_t>> options) {
  for (const auto& [name, value] : options)
    if (value < 1) throw ValueError(fmt::format("[{}] --{} must be at least 1, but is {}", program, name, value));
}

Pattern AttentionOptions::pattern(std::int64_t context, const std::string& program) const {
  check_attention_name(attention, program, "--attention");
  check_at_least_one(program, {{"window", window}});
  const Pattern causal = Pattern::causal();
  if (attention == "window") return Pattern::window(window - 1, 0);
  if (attention == "dilated")
    return of_option("--segments, --rates",
                     [&] { return Pattern::dilated(segments_for(context), rates_for(context)) & causal; });
  if (attention == "block_sparse") {
    std::vector<std::int64_t> back;
    for (const std::int64_t offset : offsets) {
      if (offset < 0)
        throw ValueError(
            fmt::format("[{}] --offsets count blocks back and must not be negative, but one is {}", program, offset));
      back.push_back(-offset);
    }
    return of_option("--block, --offsets", [&] { return Pattern::block_offsets(block, back) & causal; });
  }
  if (attention == "global_local")
    return of_option("--block, --global", [&] { return Pattern::global_local(block, window, global) & causal; });
  if (attention == "strided") return of_option("--stride", [&] { return Pattern::strided(stride) & causal; });
  if (attention == "random")
    return of_option("--block, --density", [&] { return Pattern::random_blocks(block, density, seed) & causal; });
  if (is_recurrent()) check_at_least_one(program, {{"state-chunk", state_chunk}, {"conv", conv}});
  if (attention == "nsa") check_at_least_one(program, {{"block", block}, {"count", count}});
  if (attention == "ring") {
    check_at_least_one(program, {{"ring-size", ring_size}});
    if (ring_size > most_ranks)
      throw ValueError(fmt::format("[{}] --ring-size must be at most {}, but is {}", program, most_ranks, ring_size));
    of_option("--layout", [&] { return attention::parse_layout(layout); });
  }
  return causal;
}

namespace {

/// "rope base 1e6", "rope base 10000 yarn 4".
std::string describe_rope(const RopeOptions& rope) {
  const std::pair<RopeScaling, const char*> scalings[] = {
      {RopeScaling::linear, " linear "}, {RopeScaling::ntk, " ntk "}, {RopeScaling::yarn, " yarn "}};
  std::string text = fmt::format("rope base {}", rope.base);
  for (const auto& [scaling, name] : scalings)
    if (rope.scaling == scaling) text += fmt::format("{}{}", name, rope.factor);
  return text;
}

}  // namespace

std::string AttentionOptions::describe(std::int64_t context) const {
  std::string text = attention == "window"  ? fmt::format("window of {}", window)
                     : attention == "ring"  ? fmt::format("causal over a {} ring of {}", layout, ring_size)
                     : attention == "delta" ? "gated delta rule"
                     : attention == "gla"   ? "gated linear attention"
                     : attention == "nsa"
                         ? fmt::format("window of {} and {} of {} selected", window, plural(count, "block"), block)
                         : pattern(context, "attention").to_string();
  if (is_recurrent()) return heads ? text + ", " + plural(heads, "head") : text;
  if (!rope)
    text += ", no positions";
  else if (const RopeOptions usual; rope->base != usual.base || rope->scaling != usual.scaling)
    text += ", " + describe_rope(*rope);
  if (softcap) text += fmt::format(", softcap {}", *softcap);
  if (sinks) text += ", sinks";
  if (qk_norm) text += ", qk-norm";
  if (heads) text += ", " + plural(heads, "head");
  if (kv_heads) text += fmt::format(", {} for keys", plural(kv_heads, "head"));
  return text;
}

attention::MixerSpec AttentionOptions::spec(std::int64_t context, const std::string& program, double output_deviation,
                                            const attention::RingSetup& processes) const {
  attention::MixerSpec spec{.pattern = pattern(context, program),
                            .multihead = {.kv_heads = kv_heads,
                                          .layer_norm = false,
                                          .post_norm = false,
                                          .qk_norm = qk_norm,
                                          .rope = rope,
                                          .sinks = sinks,
                                          .output_deviation = output_deviation},
                            .core = {.softcap = softcap},
                            .ring = processes,
                            .heads = heads,
                            .positions = rope.has_value()};
  if (is_recurrent())
    spec.recurrent = {
        .delta = attention == "delta", .chunk = state_chunk, .convolution = conv, .output_deviation = output_deviation};
  if (attention == "nsa") spec.sparse = {.block = block, .count = count, .window = window};
  if (attention == "ring" && !processes.communicator) {
    spec.ring.ring_size = static_cast<int>(ring_size);
    spec.ring.layout = attention::parse_layout(layout);
  }
  return spec;
}

void rethrow_of(const std::string& option) {
  const auto renamed = [&](const Error& error) {
    const std::string text = error.what();
    const std::size_t end = text.find("] ");
    const bool names_it = text.starts_with("[--") || text.compare(std::min(end, text.size()), 4, "] --") == 0;
    return names_it || end == std::string::npos ? text : "[" + option + text.substr(end);
  };
  try {
    throw;
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const FileError& error) {
    throw FileError(renamed(error));
  } catch (const DeviceError& error) {
    throw DeviceError(renamed(error));
  } catch (const Error& error) {
    throw ValueError(renamed(error));
  }
}

namespace {

/// Insertions, deletions, replacements and swaps of adjacent letters (optimal string alignment).
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before = std::exchange(row, next);
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const auto begins = [&](const std::string& name) { return !word.empty() && name.starts_with(word); };
  if (std::ranges::count_if(names, begins) == 1) return *std::ranges::find_if(names, begins);
  std::string best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names)
    if (const std::size_t edits = edits_between(word, name); edits < least) least = edits, best = name;
  return best;
}

namespace {

/// The message for an invalid command line, with one suggestion.
std::string describe_fault(const CLI::App* app, const CLI::Error& error) {
  const CLI::App* at = app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  const std::string whole = app->get_name(), program = "[" + whole.substr(whole.find_last_of(" /") + 1) + "] ";
  const std::string help = fmt::format("{}{} --help lists ", whole, at == app ? "" : " " + at->get_name());
  std::vector<std::string> options, commands;
  for (const CLI::Option* const option : at->get_options())
    for (const std::string& name : option->get_lnames()) options.push_back(name);
  for (const CLI::App* const command : at->get_subcommands({})) commands.push_back(command->get_name());
  const auto unknown = [&](const std::string& kind, const std::string& word, const std::string& dashes,
                           const std::vector<std::string>& names) {
    const std::string near = nearest(std::string_view(word).substr(dashes.size()), names);
    return fmt::format("{}there is no {} {}: {}\n", program, kind, printable(word),
                       near.empty() ? fmt::format("{}the {}s", help, kind)
                                    : fmt::format("did you mean {}{}?", dashes.empty() ? "" : "--", near));
  };
  std::string text;
  for (std::string word : app->remaining(true)) {
    word.resize(std::min(word.find('='), word.size()));
    const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
    if (dashes > 0)
      text += unknown("option", word, word.substr(0, dashes), options);
    else if (!commands.empty() && text.empty())
      text += unknown("command", word, "", commands);
  }
  if (!text.empty()) return text;
  for (const CLI::Option* const option : at->get_options())
    if (error.get_name() == "ArgumentMismatch" &&
        option->count() > static_cast<std::size_t>(option->get_items_expected_max()))
      return fmt::format("{}{} is given {} times\n", program, option->get_name(), option->count());
  return fmt::format("{}{}\n{}the options\n", program, printable(error.what(), 1000), help);
}

}  // namespace

void read_command_line(CLI::App& app, int argc, const char* const* argv) {
  app.failure_message(describe_fault);
  app.parse(argc, argv);
  std::vector<const CLI::App*> commands{&app};
  for (const CLI::App* const command : app.get_subcommands()) commands.push_back(command);
  for (const CLI::App* const command : commands)
    for (const CLI::Option* const option : command->get_options())
      for (const std::string& text : option->results()) {
        const std::string type = option->get_type_name();
        const bool held = type.starts_with("UINT")    ? number_in<std::uint64_t>(text).has_value()
                          : type.starts_with("INT")   ? number_in<std::int64_t>(text).has_value()
                          : type.starts_with("FLOAT") ? number_in<double>(text).has_value()
                                                      : true;
        if (!held)
          throw CLI::ValidationError(option->get_name(), printable(text) + " is not a valid number for it" +
                                                             (type.starts_with("UINT") ? ", from 0 to 2^64 - 1" : ""));
      }
}

std::set<std::string> options_given(const CLI::App& app) {
  std::set<std::string> given;
  for (const CLI::Option* const option : app.get_options())
    if (option->count() > 0) given.insert(option->get_single_name());
  return given;
}

int number_in_environment(std::initializer_list<const char*> names) {
  for (const char* const name : names)
    if (const char* const text = std::getenv(name))
      if (const auto number = number_in<int>(text)) return *number;
  return -1;
}

int parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  try {
    read_command_line(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostream nowhere(nullptr);
    const bool leads = number_in_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) <= 0;
    return app.exit(error, leads ? std::cout : nowhere, leads ? std::cerr : nowhere) == 0 ? exit_good : exit_usage;
  }
  return -1;
}

std::optional<double> parse_seconds(const std::string& text) {
  double number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || !(number >= 0) || !std::isfinite(number)) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(last - end));
  for (const auto& [name, seconds] :
       {std::pair{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}, {"h", 3600.0}})
    if (unit == name) return number * seconds;
  return std::nullopt;
}

Device parse_device(const std::string& text, const std::string& program, const char* missing_on_sim) {
  if (text == "cpu") return cpu;
  if (text == "auto") return cuda_unavailable_reason().empty() ? Device{DeviceType::cuda, 0} : cpu;
  const auto refuse = [&] {
    const char* const kinds =
        missing_on_sim ? "cpu, cuda:N or auto" : "cpu, cuda:N, auto, sim:SIZE or sim:SIZE,like=cpu";
    throw ValueError(fmt::format("[{}] --device must be {}, but is {}", program, kinds, printable(text)));
  };
  if (text.starts_with("cuda")) {
    Device device;
    try {
      device = Device::parse(text);
    } catch (const ValueError&) {
      refuse();
    }
    allocator_for(device);  // throws the reason if unusable
    return device;
  }
  if (missing_on_sim && text.starts_with("sim"))
    throw ValueError(fmt::format("[{}] --device must be cpu, cuda:N or auto: on sim {}", program, missing_on_sim));
  if (!text.starts_with("sim:")) refuse();
  const std::size_t comma = std::min(text.find(','), text.size());
  const std::string rest = text.substr(comma), like = rest.starts_with(",like=") ? rest.substr(6) : "";
  if (rest.empty() != like.empty()) refuse();
  const std::uint8_t index = like.empty() ? 0 : 100;  // a device cannot change its pages
  const std::size_t capacity = of_option("--device", [&] { return parse_bytes(text.substr(4, comma - 4)); });
  configure_simulated_device(index, capacity, like);
  return {DeviceType::sim, index};
}

std::string Engines::to_string() const {
  const std::string why = reason.empty() ? "" : fmt::format(" ({})", reason);
  return fmt::format("{}, products by {}, attention by {}{}", machine, products, attention, why);
}

Engines engines_of(Device device) {
  const std::string attention(kernels::attention_backend(device));
  if (device.is_cuda()) return {cuda_device_description(device.index), "cuBLASLt", attention};
  const int threads = kernels::num_threads();
  return {plural(threads, "thread"), std::string(kernels::gemm_backend()), attention,
          kernels::instruction_set_reason()};
}

PoolGuard::PoolGuard(Device device, const std::string& budget) : pool_(allocator_for(device)), budget_(pool_.budget()) {
  pool_.trim();
  if (!budget.empty()) pool_.set_budget(parse_bytes(budget));
  pool_.reset_peaks();
  pool_.reset_sequence_hash();
}

PoolGuard::~PoolGuard() {
  try {
    pool_.trim();
    pool_.set_budget(budget_);
  } catch (const Error&) {  // the caller's live memory exceeds its budget: keep the old state
  }
}

}  // namespace poolgrad::examples
