#include "examples/recall/recall.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <ostream>

#include "allocator/base/random.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators.h"
#include "examples/support/files.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

constexpr double clip_norm = 1.0;
constexpr std::int64_t warmup_steps = 20;
/// The default instead of 0: two layers find a pair together, and at 0 neither gets a gradient.
constexpr double output_deviation = -1.0;

/// Constant after warm-up; falls to a tenth in the last fifth of the budget.
double learning_rate(double peak, std::int64_t step, double used) {
  const double warmup = std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup_steps));
  return peak * warmup * (1.0 - 0.9 * std::clamp((used - 0.8) / 0.2, 0.0, 1.0));
}

std::int64_t count_right(const Tensor& logits, const std::vector<std::int64_t>& answers) {
  const std::vector<double> values = logits.to_vector<double>();
  const auto width = static_cast<std::ptrdiff_t>(logits.size(1));
  std::int64_t right = 0;
  auto row = values.begin();
  for (const std::int64_t answer : answers) {
    right += std::max_element(row, row + width) - row == answer;
    row += width;
  }
  return right;
}

/// 32, 64, ... and the longest itself.
std::vector<std::int64_t> scored_distances(std::int64_t longest) {
  std::vector<std::int64_t> result;
  for (std::int64_t d = 32; d < longest; d *= 2) result.push_back(d);
  result.push_back(longest);
  return result;
}

/// One model, trained to recall and tested.
class RecallTrainer {
 public:
  RecallTrainer(const RecallOptions& options, const Contender& contender, Device device)
      : options_(options),
        device_(device),
        generator_(options.seed),
        model_(options.model(contender),
               attention::attention_mixer(
                   specs_of(options.layers_of(contender), options.longest(), "recall", output_deviation)),
               {.device = device, .generator = &generator_}),
        optimizer_(model_.named_parameters(), {.learning_rate = options.lr, .beta2 = 0.95, .weight_decay = 0.0}),
        step_(model_, optimizer_, clip_norm, "recall"),
        curriculum_(options.task(), options.seed) {}

  /// One step; `used` is the fraction of the budget used before it.
  RecallRecord step(double used) {
    const std::int64_t number = step_.steps() + 1;
    const nn::SequenceTask& task = curriculum_.task(number);
    const std::int64_t sequences = std::max<std::int64_t>(1, options_.tokens / task.length());
    double accuracy = 0;
    RecallRecord record{step_.run(learning_rate(options_.lr, number, used), 1,
                                  [&] {
                                    const Answers answers = answer(task, options_.seed, drawn_, sequences);
                                    accuracy = static_cast<double>(answers.right) / static_cast<double>(answers.asked);
                                    return cross_entropy(answers.logits, answers.targets);
                                  }),
                        task.distance, task.pairs, accuracy};
    drawn_ += sequences;
    tokens_ += sequences * task.length();
    curriculum_.observe(number, record.accuracy, used);
    return record;
  }

  /// Scores `questions` questions at a distance, on separate sequences.
  RecallScore score(std::int64_t distance, std::int64_t questions) {
    const NoGradGuard no_grad;
    nn::SequenceTask task = options_.task();
    task.distance = distance;
    RecallScore result{.distance = distance};
    const std::uint64_t validation = random_bits(options_.seed, 0);
    model_.eval();
    for (std::int64_t first = 0; result.asked < questions; ++first) {
      const Answers answers = answer(task, validation, first, 1);
      result.right += answers.right;
      result.asked += answers.asked;
    }
    model_.train();
    return result;
  }

  const nn::TaskCurriculum& curriculum() const { return curriculum_; }
  std::int64_t parameter_count() const { return model_.parameter_count(); }
  std::int64_t tokens() const { return tokens_; }

 private:
  struct Answers {
    Tensor logits, targets;
    std::int64_t right = 0, asked = 0;
  };

  /// Answers a batch of sequences of a seed, from `first` on.
  Answers answer(const nn::SequenceTask& task, std::uint64_t seed, std::int64_t first, std::int64_t sequences) {
    std::vector<std::int64_t> tokens, rows, targets;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const nn::TaskSequence sequence = task.make(seed, static_cast<std::uint64_t>(first + s));
      tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      for (const auto& question : sequence.questions) {
        rows.push_back(s * task.length() + question.position);
        targets.push_back(question.answer);
      }
    }
    Answers result;
    result.asked = static_cast<std::int64_t>(targets.size());
    Tensor batch, asked;
    {
      const MemoryScope scope("batch", Category::input);
      batch = from_data(tokens, {sequences, task.length()}, device_);
      asked = from_data(rows, {result.asked}, device_);
      result.targets = from_data(targets, {result.asked}, device_);
    }
    const Tensor hidden = model_.hidden(batch);
    result.logits = model_.logits_of(index_select(flatten(hidden, 0, 1), 0, asked));
    result.right = count_right(result.logits, targets);
    return result;
  }

  const RecallOptions& options_;
  Device device_;
  Generator generator_;
  nn::LanguageModel model_;
  nn::AdamW optimizer_;
  nn::TrainingStep step_;
  nn::TaskCurriculum curriculum_;
  std::int64_t drawn_ = 0, tokens_ = 0;
};

/// Tracks used steps and seconds, and estimates the rest.
class Budget {
 public:
  explicit Budget(const RecallOptions& options) : options_(options) {}

  double seconds() const { return watch_.seconds(); }
  double processor_seconds() const { return static_cast<double>(std::clock() - processor_start_) / CLOCKS_PER_SEC; }
  double used(std::int64_t steps) const {
    const double by_steps = options_.steps ? static_cast<double>(steps) / static_cast<double>(options_.steps) : 0.0;
    return std::max(by_steps, options_.seconds > 0 ? seconds() / options_.seconds : 0.0);
  }
  /// Extrapolates the current pace; steps at far distances are slower than earlier ones.
  double eta(std::int64_t steps) const {
    const double done = used(steps);
    return done > 0 ? seconds() * (1.0 - done) / done : 0.0;
  }

 private:
  const RecallOptions& options_;
  Stopwatch watch_;
  std::clock_t processor_start_ = std::clock();
};

void run_one(const RecallOptions& options, const Contender& contender, Device device, std::ostream& out, bool live,
             RecallResult& result) {
  CachingAllocator& pool = allocator_for(device);
  pool.reset_peaks();
  RecallTrainer trainer(options, contender, device);
  result.pattern = describe_layers(options.layers_of(contender), options.longest());
  result.parameters = trainer.parameter_count();
  Progress progress(out, live && !options.quiet);
  const auto print = [&](const std::string& text) {
    if (!options.quiet) progress.line(text);
  };
  print(describe_contender(options, contender, result));

  const Budget budget(options);
  std::int64_t step = 0;
  while (budget.used(step) < 1.0 && !trainer.curriculum().done() && !result.interrupted) {
    const std::size_t level = trainer.curriculum().level();
    const double accuracy = trainer.curriculum().accuracy();
    const RecallRecord& record = result.records.emplace_back(trainer.step(budget.used(step)));
    step = record.step;
    result.interrupted = InterruptGuard::interrupted();
    if (trainer.curriculum().level() != level)
      print(describe_level(record, accuracy, trainer.curriculum().current(), budget.seconds()));
    else if (step % options.report == 0 || trainer.curriculum().done())
      print(describe_step(options, result, trainer.curriculum(), budget.eta(step)));
    else if (live && !options.quiet)
      progress.status(bar(budget.used(step)) + " " +
                      describe_step(options, result, trainer.curriculum(), budget.eta(step)));
  }
  result.seconds = budget.seconds();
  result.processor_seconds = budget.processor_seconds();
  result.tokens = trainer.tokens();
  result.learned = trainer.curriculum().done();
  result.peak_bytes = pool.statistics().allocated_bytes.peak;
  for (const std::int64_t distance : scored_distances(std::max(options.distance, options.ask))) {
    if (live && !options.quiet) progress.status("asking at distance " + std::to_string(distance));
    result.scores.push_back(trainer.score(distance, options.questions));
  }
  print(describe_end(result));
}

}  // namespace

nn::SequenceTask RecallOptions::task() const {
  const nn::TaskKind& kind = nn::parse_task_kind(task_name);
  const std::int64_t count = pairs.value_or(kind.pairs);
  return {.kind = &kind,
          .distance = distance,
          .pairs = count,
          .keys = keys.value_or(std::max(kind.keys, kind.own_keys ? count : 0)),
          .values = values.value_or(std::max(kind.values, kind.own_values ? count : 0)),
          .spacing = spacing,
          .align = align,
          .hops = hops};
}

std::vector<Contender> RecallOptions::contenders() const {
  return contenders_of(layers, attention.attention, "recall");
}

std::int64_t RecallOptions::longest() const {
  nn::SequenceTask far = task();
  far.distance = std::max(distance, ask);
  return far.length();
}

std::vector<LayerRun> RecallOptions::layers_of(const Contender& contender) const {
  AttentionOptions usual = attention;
  usual.attention = contender.kind;
  usual.seed = seed;
  if (usual.segments.empty() && usual.rates.empty()) {
    usual.segments = {256, usual.segments_for(longest()).back()};
    usual.rates = {1, 4};
  }
  return contender.layers.runs(usual);
}

nn::LanguageModelConfig RecallOptions::model(const Contender& contender) const {
  return {.vocabulary = task().vocabulary(),
          .context = longest(),
          .layers = contender.layers.count(),
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .feed_forward_multiplier = 2,
          .tied_head = task().kind->own_values};  // thousands of values: none is learned twice
}

void RecallOptions::check() const {
  const auto refuse = [](const std::string& reason) { throw ValueError("[recall] " + reason); };
  task().check();
  check_at_least_one("recall", {{"tokens", tokens}, {"questions", questions}, {"report", report}});
  if (steps < 0 || !(seconds >= 0)) refuse("--steps and --seconds must not be negative");
  if (steps == 0 && seconds == 0) refuse("--steps 0 needs --seconds: the training ends after them");
  if (!(lr > 0)) refuse(fmt::format("--lr must be positive, but is {}", lr));
  if (ask < 0) refuse(fmt::format("--ask must not be negative, but is {}", ask));
  check_files("recall", {{"--json", json, true}, {"--csv", csv, true}, {"--svg", svg}});
  for (const Contender& contender : contenders()) {
    of_option("--layers, --width, --heads", [&] { model(contender).check(); });
    check_layers(layers_of(contender), model(contender), "recall");
  }
}

int parse_recall_options(int argc, const char* const* argv, RecallOptions& o) {
  CLI::App app(
      "Trains a small model from scratch to recall values by key over long distances, and shows how far each kind of "
      "attention reaches.",
      "./run recall");
  app.option_defaults()->always_capture_default();
  const auto preset = [&o](const std::string& name) {
    if (name == "needle") o.task_name = "passkey", o.distance = 1024;
    if (name == "mqar") o.task_name = name, o.distance = o.ask = 256, o.heads = 1, o.tokens = 2048;
  };
  app.add_option_function<std::string>("--preset", preset,
                                       "needle: a passkey at distance 1024, also tested at longer distances; mqar: 64 "
                                       "pairs of 4096 keys and values in 512 tokens, by one head")
      ->check(CLI::IsMember({"needle", "mqar"}));
  app.add_option("--task", o.task_name,
                 "recall: pairs of keys and values; passkey: a number hidden in a long text; mqar: pairs among random "
                 "tokens; copy: symbols to repeat; induction: pairs among random values; variables: names assigned to "
                 "values and to each other");
  app.add_option("--distance", o.distance, "Longest distance from a value to its question in training, in tokens");
  app.add_option("--ask", o.ask, "Longest distance in the final test, at least that of training");
  const auto add = setting_adder(app);
  add("layers", o.layers,
      "Attention of each transformer block; several lists to compare, separated by semicolons; or a number of blocks "
      "for --attention");
  add("attention", o.attention.attention,
      fmt::format("Instead of a list, kinds of attention to compare, each with 2 layers or the number of --layers: {}",
                  fmt::join(attention_names(), ", ")));
  for_each_attention_setting(o.attention, add);
  app.get_option("--segments")
      ->description("dilated: lengths of segments (default: 256 and a length that holds the sequence)");
  app.get_option("--rates")->description("dilated: one dilation rate per segment (default: 1,4)");
  app.add_option("--pairs", o.pairs,
                 "Pairs stated and asked for in a sequence, digits, symbols or variables (default: recall 16, passkey "
                 "and copy 8, mqar 64, induction 1, variables 6)");
  app.add_option("--keys", o.keys, "Different keys (default: recall and variables 16, mqar 4096, others as needed)");
  app.add_option("--values", o.values, "Different values (default: 16; passkey: 10; mqar: 4096)");
  app.add_option("--spacing", o.spacing, "Tokens from one statement to the next");
  app.add_option(
      "--align", o.align,
      "Values and questions are at equal positions modulo this, for dilated branches of that rate (1: anywhere)");
  app.add_option("--hops", o.hops, "variables: references from a variable to its value, at most");
  app.add_option("--width", o.width, "Width of the model");
  app.add_option("--heads", o.heads, "Attention heads; dilated: at least the largest rate");
  app.add_option("--lr", o.lr, "Learning rate");
  app.add_option("--tokens", o.tokens, "Tokens per step, at least one sequence");
  app.add_option("--steps", o.steps, "Most training steps (0: until --seconds are over)");
  app.add_option("--seconds", o.seconds, "Most seconds of training (0: no limit)");
  app.add_option("--questions", o.questions, "Test questions at each distance");
  app.add_option("--seed", o.seed, "Seed of the sequences and the initial weights");
  app.add_option("--device", o.device, computing_device_help);
  app.add_option("--report", o.report, "Steps between printed lines");
  app.add_option("--json", o.json, "JSON report to write; - for standard output, without any other text");
  app.add_option("--csv", o.csv, "CSV file of the steps to write; - as for --json");
  app.add_option("--svg", o.svg, "Picture to write: accuracy by distance");
  app.add_flag("--quiet", o.quiet, "Print only errors");
  const int code = parse_command_line(app, argc, argv);
  if (code >= 0) return code;
  const std::set<std::string> given = options_given(app);
  if (given.contains("attention") && !given.contains("layers")) o.layers = 2;
  check_one_source(o.layers, given);
  std::vector<std::string> kinds;
  for (const Contender& contender : o.contenders())
    for (const std::string& kind : kinds_of(o.layers_of(contender))) kinds.push_back(kind);
  check_attention_options(given, kinds);
  return code;
}

namespace {

std::string csv_of(const std::vector<RecallResult>& results) {
  std::string text = "attention,step,distance,pairs,loss,accuracy,milliseconds\n";
  for (const RecallResult& r : results)
    for (const RecallRecord& s : r.records)
      text += fmt::format("{},{},{},{},{},{},{}\n", csv_cell(r.attention), s.step, s.distance, s.pairs, s.loss,
                          s.accuracy, s.milliseconds);
  return text;
}

}  // namespace

std::vector<RecallResult> train_and_ask(const RecallOptions& options, Device device, std::ostream& out, bool live) {
  const InterruptGuard interrupts;
  Progress progress(out, false);
  if (!options.quiet) progress.line(describe_task(options, device));
  std::vector<RecallResult> results;
  for (const Contender& contender : options.contenders()) {
    RecallResult& result = results.emplace_back();
    result.attention = contender.name;
    try {
      run_one(options, contender, device, out, live, result);
    } catch (const Error& error) {  // continue with the other contenders
      result.failure = std::current_exception();
      result.error = error.what();
      if (!options.quiet) progress.line(fmt::format("{} failed: {}", contender.name, nn::first_line(result.error)));
    }
    if (result.interrupted) break;
  }
  const std::string described = describe_results(options, results);
  if (!options.quiet && !described.empty()) progress.line(described);
  return results;
}

std::vector<RecallResult> run_recall(RecallOptions options, std::ostream& out, bool live) {
  options.check();
  options.quiet |= options.json == "-" || options.csv == "-";
  for (const std::string& path : {options.json, options.csv, options.svg}) nn::check_writable(path, "recall");
  const Device device = parse_device(options.device, "recall", "nothing is learned");
  options.device = to_string(device);
  const std::vector<RecallResult> results = train_and_ask(options, device, out, live);
  const auto write = [&](const char* what, const std::string& path, const auto& text) {
    if (path.empty()) return;
    write_text(path, text(), "recall", out);
    if (!options.quiet) out << fmt::format("wrote    {} {}", what, path) << std::endl;
  };
  write("report", options.json, [&] { return json_text(recall_json(options, results)); });
  write("steps", options.csv, [&] { return csv_of(results); });
  write("picture", options.svg, [&] { return chart_file(recall_chart(options, results)); });
  for (const RecallResult& result : results)
    if (result.failure) std::rethrow_exception(result.failure);
  return results;
}

}  // namespace poolgrad::examples
