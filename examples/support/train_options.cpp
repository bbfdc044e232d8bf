#include "examples/support/train_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string_view>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"

namespace poolgrad::examples {

namespace {

template <class T>
std::string to_text(const T& value) {
  return fmt::format("{}", value);
}

std::string to_text(const std::vector<std::int64_t>& values) { return fmt::format("{}", fmt::join(values, ",")); }

void from_text(const std::string& name, const std::string& text, std::string& value) {
  (void)name;
  value = text;
}
template <class T>
void from_text(const std::string& name, const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw FileError("[train] the checkpoint's " + name + " is malformed: " + text.substr(0, 40));
}
void from_text(const std::string& name, const std::string& text, std::vector<std::int64_t>& values) {
  values.clear();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    from_text(name, text.substr(begin, end - begin), values.emplace_back());
    begin = end + 1;
  }
}

/// How long and how fast a model learns is no part of what it is.
bool may_change_on_resuming(std::string_view name) { return name == "steps" || name == "lr"; }

/// Calls f(name, member) for every option that decides the numbers of a run.
template <class Options, class F>
void for_each_setting(Options& o, F&& f) {
  f("context", o.context);
  f("layers", o.layers);
  f("width", o.width);
  f("heads", o.heads);
  f("kv-heads", o.kv_heads);
  for_each_attention_setting(o.attention, f);
  f("batch", o.batch);
  f("steps", o.steps);
  f("lr", o.lr);
  f("dropout", o.dropout);
  f("seed", o.seed);
  f("dtype", o.dtype);
}

}  // namespace

void TrainOptions::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[train] " + reason); };
  const std::pair<const char*, std::int64_t> sizes[] = {{"batch", batch}, {"report", report}};
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(fmt::format("--{} must be at least 1, but is {}", name, size));
  if (steps < 0 || sample < 0 || stop_after < 0) refuse("--steps, --sample and --stop-after must not be negative");
  if (!(lr > 0)) refuse(fmt::format("--lr must be positive, but is {}", lr));
  if (!(dropout >= 0 && dropout < 1)) refuse(fmt::format("--dropout must be in [0, 1), but is {}", dropout));
  model().check();
  pattern();
  if (other_text && resume.empty()) refuse("--other-text needs --resume");
  if (device.starts_with("sim") && !(save.empty() && resume.empty()))
    refuse("--device " + device + " has no bytes to save or resume");
}

std::map<std::string, std::string> TrainOptions::configuration() const {
  std::map<std::string, std::string> result;
  for_each_setting(*this, [&](const char* name, const auto& value) { result[name] = to_text(value); });
  return result;
}

void TrainOptions::adopt(const std::map<std::string, std::string>& configuration) {
  for_each_setting(*this, [&](const char* name, auto& value) {
    const auto entry = configuration.find(name);
    if (entry == configuration.end()) throw FileError(std::string("[train] the checkpoint has no ") + name);
    if (given.count(name)) {
      if (may_change_on_resuming(name)) return;
      if (to_text(value) != entry->second)
        throw ValueError(fmt::format("[train] the checkpoint is of another configuration: --{} is {} there, {} here",
                                     name, entry->second, to_text(value)));
    }
    from_text(name, entry->second, value);
  });
}

nn::LanguageModelConfig TrainOptions::model() const {
  return {.context = context,
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads ? kv_heads : heads,
          .dropout = dropout,
          .dtype = parse_dtype(dtype)};
}

attention::Pattern TrainOptions::pattern() const { return attention.pattern(context, "train"); }

int parse_train_options(int argc, const char* const* argv, TrainOptions& o) {
  CLI::App app("Trains a byte-level long-context language model on any text.");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.text, "Files or folders to read (default: the C++ sources of Eigen)");
  app.add_option("--context", o.context, "Bytes that the model sees at once");
  app.add_option("--layers", o.layers, "Transformer blocks");
  app.add_option("--width", o.width, "Width of the model");
  app.add_option("--heads", o.heads, "Attention heads");
  app.add_option("--kv-heads", o.kv_heads, "Key and value heads (0: as many as heads)");
  app.add_option("--attention", o.attention.attention, fmt::format("{}", fmt::join(attention_names(), ", ")));
  add_attention_options(app, o.attention);
  app.add_option("--batch", o.batch, "Sequences per step");
  app.add_option("--steps", o.steps, "Training steps");
  app.add_option("--lr", o.lr, "Peak learning rate");
  app.add_option("--dropout", o.dropout, "Dropout of embeddings and residual branches");
  app.add_option("--seed", o.seed, "Decides the split, the batches and the initial weights");
  app.add_option("--dtype", o.dtype, "Activations: f32, f64, bf16 or f16 (parameters: f64 for f64, else f32)");
  app.add_option("--device", o.device, "cpu, or sim:SIZE, a device of that capacity without arithmetic");
  app.add_option("--budget", o.budget, "Hard limit of the memory pool, such as 512MiB");
  app.add_option("--save", o.save, "Checkpoint to write at the end, and when stopped");
  app.add_option("--resume", o.resume,
                 "Checkpoint to go on from, bit for bit; --steps and --lr may differ from its own");
  app.add_flag("--other-text", o.other_text, "Go on from a checkpoint that was trained on another text");
  app.add_option("--stop-after", o.stop_after, "Save and stop after this step (0: never)");
  app.add_option("--report", o.report, "Steps between lines");
  app.add_option("--sample", o.sample, "Bytes of text to write at the end");
  app.add_option("--json", o.json, "Report to write, as JSON");
  app.add_option("--csv", o.csv, "Steps to write, as CSV");
  app.add_flag("--quiet", o.quiet, "Print nothing but errors");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0) o.given.insert(option->get_single_name());
  return -1;
}

}  // namespace poolgrad::examples
