// Records real operators on a pool.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "allocator/base/random.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/memory_scope.h"
#include "attention/attend.h"
#include "attention/modules/multihead.h"
#include "autograd/operators.h"
#include "examples/lab/lab.h"
#include "examples/support/train.h"
#include "nn/training/progress.h"
#include "nn/training/sampler.h"
#include "tensor/creation.h"

namespace poolgrad::examples {

namespace {

struct RecordOptions {
  std::string workload = "train";
  std::string size = "default";  // or "small", "large"
  std::int64_t steps = 4;
  std::string device = "cpu";
  std::string budget;
  std::string output;
  std::uint64_t events = std::uint64_t{1} << 20;
};

/// The workload; calls `done` after each step.
struct Work {
  const RecordOptions& options;
  Device device;
  CachingAllocator& pool;
  std::function<void(std::int64_t)> done;
};

TrainOptions model_of_size(const RecordOptions& record) {
  TrainOptions options;
  options.steps = record.steps;
  if (record.size == "small") {
    options.context = 256;
    options.width = 64;
    options.attention.window = 64;
  } else if (record.size == "large") {
    options.layers = 6;
    options.width = 256;
    options.heads = 8;
    options.kv_heads = 2;
    options.batch = 2;
  }
  return options;
}

nn::Corpus made_up_text(std::int64_t bytes) {
  std::vector<std::uint8_t> text;
  for (std::int64_t i = 0; i < bytes; ++i)
    text.push_back(static_cast<std::uint8_t>(' ' + random_below(1, static_cast<std::uint64_t>(i), 96)));
  const std::vector<std::uint8_t> validation(text.begin(), text.begin() + 64);
  return {text, validation};
}

void train_steps(const Work& work) {
  const TrainOptions options = model_of_size(work.options);
  Generator generator(options.seed);
  const auto trainer = options.make_trainer(made_up_text(2 * options.context + 64), work.device, generator);
  for (std::int64_t step = 1; step <= work.options.steps; ++step) {
    trainer->step();
    work.done(step);
  }
}

void attention_passes(const Work& work) {
  const std::int64_t length = work.options.size == "small" ? 128 : work.options.size == "large" ? 4096 : 1024;
  const std::int64_t heads = work.options.size == "small" ? 2 : 4;
  Generator generator(1);
  for (std::int64_t step = 1; step <= work.options.steps; ++step) {
    work.pool.begin_step();
    // Lengths vary as in batches of text.
    const auto seed = static_cast<std::uint64_t>(step);
    const std::int64_t n =
        length / 2 + static_cast<std::int64_t>(random_below(2, seed, static_cast<std::uint64_t>(length / 2)));
    const TensorOptions options{.device = work.device};
    const auto input = [&](const char* name, Category category, std::int64_t head_count) {
      const MemoryScope scope(name, category);
      return randn({1, n, head_count, 32}, options, generator).set_requires_grad();
    };
    const Tensor q = input("query", Category::query, heads), k = input("key", Category::key, heads / 2),
                 v = input("value", Category::value, heads / 2);
    const auto pattern = step % 2 ? attention::Pattern::causal() : attention::Pattern::window(64, 0);
    const Tensor loss = sum(attention::attend(q, k, v, pattern).out);
    const MemoryScope scope("backward", Category::gradient);
    loss.backward();
    work.done(step);
  }
}

void generate(const Work& work) {
  TrainOptions options = model_of_size(work.options);
  Generator generator(1);
  const auto model = options.make_model(work.device, generator);
  model->eval();
  work.pool.begin_step();
  nn::sample_text(*model, "int main() {\n", work.options.steps, {}, work.device);
  work.done(work.options.steps);
}

/// "train": steps of the model of examples/train on synthetic text. "attention": forward and backward of one attention
/// layer, alternately causal and windowed, at growing lengths. "generate": text from the model, a byte per step, with a
/// key-value cache.
void perform(const Work& work) {
  if (work.options.workload == "train") return train_steps(work);
  if (work.options.workload == "attention") return attention_passes(work);
  generate(work);
}

/// Empties the device's pool and records it; restores it afterwards.
class Recording {
 public:
  Recording(Device device, const std::string& budget, std::size_t events) : guard_(device, budget) {
    pool().start_trace(events);
  }
  ~Recording() { pool().stop_trace(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  CachingAllocator& pool() const { return *guard_; }

 private:
  PoolGuard guard_;
};

/// Makes source paths relative to the source root, wherever they were compiled.
void make_relative(std::vector<TraceLocation>& locations) {
  const std::string root = POOLGRAD_SOURCE_ROOT "/";
  for (TraceLocation& location : locations)
    if (location.file.starts_with(root)) location.file.erase(0, root.size());
}

int record(const RecordOptions& options, Console& console) {
  check_at_least_one("record", {{"steps", options.steps}});
  check_output("record", options.output);
  const Device device = parse_device(options.device == "sim" ? "sim:8GiB" : options.device, "record");
  const Recording recording(device, options.budget, options.events);
  std::string failure;
  try {
    perform({options, device, recording.pool(), [&](std::int64_t step) {
               const double done = static_cast<double>(step) / static_cast<double>(options.steps);
               console.progress().status(fmt::format("{} step {}/{}", bar(done), step, options.steps));
             }});
  } catch (const OutOfMemoryError& error) {  // keep the trace that led to the failure
    failure = error.what();
  }
  Trace trace = recording.pool().trace();
  make_relative(trace.locations);
  save_trace(options.output, trace, TraceFormat::pgt);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(options.output));
  console.print(fmt::format("recorded  {} ({}), {} on {}: {}{}", options.workload, options.size,
                            plural(options.steps, "step"), options.device, counted(trace.events.size(), "event"),
                            trace.lost ? fmt::format(", {} older ones lost", format_integer(trace.lost)) : ""));
  if (!failure.empty()) console.print(failure);
  console.print(fmt::format("wrote     {}, {}", options.output, format_bytes(bytes)));
  console.answer({{"output", options.output},
                  {"bytes", bytes},
                  {"events", trace.events.size()},
                  {"lost", trace.lost},
                  {"out_of_memory", !failure.empty()}});
  return failure.empty() ? exit_good : exit_failed;
}

}  // namespace

Command add_record(CLI::App& lab) {
  CLI::App* app =
      lab.add_subcommand("record", "Runs real work and records the events of the pool; exit code 3 if memory ran out");
  const auto options = std::make_shared<RecordOptions>();
  app->add_option("--workload", options->workload, "train, attention or generate")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "attention", "generate"}));
  app->add_option("--size", options->size, "small, default (the model of examples/train) or large")
      ->capture_default_str()
      ->check(CLI::IsMember({"small", "default", "large"}));
  app->add_option("--steps", options->steps, "Training steps, passes, or tokens")->capture_default_str();
  app->add_option("--device", options->device, "cpu, cuda:N, auto, sim, or sim:SIZE")->capture_default_str();
  app->add_option("--budget", options->budget, "Hard limit of the pool, such as 512MiB");
  app->add_option("--events", options->events, "Number of newest events to keep")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 27));
  app->add_option("-o,--output", options->output, "The trace to write (.pgt)")->required();
  return {app, [options](Console& console) { return record(*options, console); }};
}

}  // namespace poolgrad::examples
