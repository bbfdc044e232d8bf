#include "examples/recall/recall_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "allocator/error.h"

namespace poolgrad::examples {

RecallTask RecallOptions::task() const {
  const RecallKind kind = parse_recall_kind(task_name);
  const bool kv = kind == RecallKind::kv;
  const std::int64_t count = pairs.value_or(kv ? 16 : 8);
  return {.kind = kind,
          .distance = distance,
          .pairs = count,
          .keys = keys.value_or(kv ? std::max<std::int64_t>(16, count) : count),
          .values = values.value_or(kv ? 16 : 10),
          .spacing = spacing,
          .align = align};
}

std::vector<std::string> RecallOptions::contenders() const {
  return compare.empty() ? std::vector<std::string>{attention.attention} : compare;
}

AttentionOptions RecallOptions::contender(const std::string& name) const {
  AttentionOptions result = attention;
  result.attention = name;
  if (result.segments.empty() && result.rates.empty()) {
    result.segments = {256, result.segments_for(task().length()).back()};
    result.rates = {1, 4};
  }
  return result;
}

nn::LanguageModelConfig RecallOptions::model() const {
  return {.vocabulary = task().vocabulary(),
          .context = task().length(),
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .feed_forward_multiplier = 2};
}

void RecallOptions::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[recall] " + reason); };
  task().check();
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"tokens", tokens}, {"questions", questions}, {"report", report}};
  for (const auto& [name, size] : sizes)
    if (size < 1) refuse(fmt::format("--{} must be at least 1, but is {}", name, size));
  if (steps < 0 || !(seconds >= 0)) refuse("--steps and --seconds must not be negative");
  if (steps == 0 && seconds == 0) refuse("--steps 0 runs until --seconds are over, and needs them");
  if (!(lr > 0)) refuse(fmt::format("--lr must be positive, but is {}", lr));
  model().check();
  for (const std::string& name : compare) check_attention_name(name, "recall", "--compare");
  for (const std::string& name : contenders()) contender(name).pattern(task().length(), "recall");
}

int parse_recall_options(int argc, const char* const* argv, RecallOptions& o) {
  CLI::App app(
      "Trains a small model from scratch to recall values by key from far back, and shows how far each kind of "
      "attention reaches.");
  app.option_defaults()->always_capture_default();
  app.add_option("--task", o.task_name, "kv: pairs of keys and values; passkey: a number hidden in a long text");
  app.add_option("--distance", o.distance, "Tokens between a value and the question for it");
  app.add_option("--attention", o.attention.attention, fmt::format("{}", fmt::join(attention_names(), ", ")));
  app.add_option("--compare", o.compare, "Several of them, one after another: causal,window,dilated")->delimiter(',');
  add_attention_options(app, o.attention);
  app.get_option("--segments")->description("dilated: lengths of segments (default: 256 and what holds the sequence)");
  app.get_option("--rates")->description("dilated: one dilation rate per segment (default: 1,4)");
  app.add_option("--pairs", o.pairs, "Pairs stated and asked for in a sequence (default: 16; passkey: 8 digits)");
  app.add_option("--keys", o.keys, "Different keys (default: 16; passkey: as many as pairs)");
  app.add_option("--values", o.values, "Different values (default: 16; passkey: 10)");
  app.add_option("--spacing", o.spacing, "Tokens from one statement to the next");
  app.add_option("--align", o.align,
                 "Values and questions agree mod this, as dilated branches of that rate need (1: anywhere)");
  app.add_option("--layers", o.layers, "Transformer blocks");
  app.add_option("--width", o.width, "Width of the model");
  app.add_option("--heads", o.heads, "Attention heads; dilated: at least the largest rate");
  app.add_option("--lr", o.lr, "Learning rate");
  app.add_option("--tokens", o.tokens, "Tokens per step, at least one sequence");
  app.add_option("--steps", o.steps, "Training steps at most (0: until --seconds are over)");
  app.add_option("--seconds", o.seconds, "Seconds of training at most (0: any)");
  app.add_option("--questions", o.questions, "Questions asked at each distance in the end");
  app.add_option("--seed", o.seed, "Decides the sequences and the initial weights");
  app.add_option("--report", o.report, "Steps between lines");
  app.add_option("--json", o.json, "Report to write, as JSON");
  app.add_option("--csv", o.csv, "Steps to write, as CSV");
  app.add_flag("--quiet", o.quiet, "Print nothing but errors");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return -1;
}

}  // namespace poolgrad::examples
