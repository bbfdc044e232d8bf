// train(): the run around the steps - pool, resuming, lines, validation, stopping, reports.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "examples/support/interrupt.h"
#include "examples/support/sampler.h"
#include "examples/support/train_report.h"
#include "examples/support/trainer.h"
#include "nn/training_state.h"

namespace poolgrad::examples {

namespace {

constexpr std::int64_t interim_batches = 4;
constexpr std::int64_t prompt_bytes = 64;
constexpr double temperature = 0.8;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Device parse_device(const std::string& text) {
  if (text == "cpu") return cpu;
  if (!text.starts_with("sim:")) throw ValueError("[train] --device must be cpu or sim:SIZE, but is " + text);
  configure_simulated_device(0, parse_bytes(text.substr(4)));
  return {DeviceType::sim, 0};
}

/// The pool of the run, empty at first, under its budget until the run ends.
class PoolGuard {
 public:
  PoolGuard(Device device, const std::string& budget) : pool_(allocator_for(device)), budget_(pool_.budget()) {
    pool_.trim();
    if (!budget.empty()) pool_.set_budget(parse_bytes(budget));
    pool_.reset_peaks();
    pool_.reset_sequence_hash();
  }
  ~PoolGuard() {
    try {
      pool_.set_budget(budget_);
    } catch (const Error&) {  // live memory of the caller above its own budget: as before the run
    }
  }
  PoolGuard(const PoolGuard&) = delete;
  PoolGuard& operator=(const PoolGuard&) = delete;

  CachingAllocator& operator*() const { return pool_; }

 private:
  CachingAllocator& pool_;
  std::size_t budget_;
};

/// The first `prompt_bytes` held-out bytes, from the start of a line.
std::string prompt_from(const Corpus& corpus, std::int64_t context) {
  auto begin = corpus.validation.begin() + static_cast<std::ptrdiff_t>(corpus.validation.size() / 2);
  const auto line = std::find(begin, corpus.validation.end(), '\n');
  if (line != corpus.validation.end()) begin = line + 1;
  const auto length = std::min<std::ptrdiff_t>({prompt_bytes, context / 2, corpus.validation.end() - begin});
  return length > 0 ? std::string(begin, begin + length) : "\n";
}

void take_statistics(const CachingAllocator& pool, TrainResult& result) {
  const Statistics statistics = pool.statistics();
  result.peak_live_bytes = statistics.allocated_bytes.peak;
  result.peak_reserved_bytes = statistics.reserved_bytes.peak;
  result.hit_rate = statistics.hit_rate();
  result.allocation_hash = pool.sequence_hash();
  for (std::size_t i = 0; i < category_count; ++i) result.bytes_by_category[i] = statistics.category_bytes[i].peak;
}

}  // namespace

TrainResult train(TrainOptions options, std::ostream& out, bool live) {
  const auto start = Clock::now();
  if (!options.resume.empty()) options.adopt(nn::read_training_metadata(options.resume));
  options.check();
  const Device device = parse_device(options.device);
  if (options.text.empty()) options.text = {default_text()};
  Corpus corpus = read_corpus(options.text, options.seed);
  const PoolGuard pool(device, options.budget);
  const InterruptGuard interrupts;

  TrainResult result;
  result.files = corpus.files;
  result.train_bytes = static_cast<std::int64_t>(corpus.train.size());
  result.held_out_bytes = static_cast<std::int64_t>(corpus.validation.size());
  Trainer trainer(options, std::move(corpus), *pool, device);
  if (!options.resume.empty()) trainer.resume(options.resume);
  result.parameters = trainer.model().parameter_count();
  Progress progress(out, live && !options.quiet);
  const auto print = [&](const std::string& text) {
    if (!options.quiet) progress.line(text);
  };
  print(describe_run(options, result));

  const std::int64_t first = trainer.steps_done();
  double milliseconds = 0;
  const auto loop = Clock::now();
  while (trainer.steps_done() < options.steps && !result.interrupted) {
    const StepRecord& record = result.steps.emplace_back(trainer.step());
    milliseconds += record.milliseconds;
    result.interrupted = InterruptGuard::interrupted() || record.step == options.stop_after;
    const bool reports = record.step == first + 1 || record.step % options.report == 0 ||
                         record.step == options.steps || result.interrupted;
    if (reports) result.validations.emplace_back(record.step, trainer.validate(interim_batches));
    const double done = static_cast<double>(record.step - first);
    const double eta = seconds_since(loop) / done * static_cast<double>(options.steps - record.step);
    take_statistics(*pool, result);
    if (reports)
      print(describe_step(options, result, eta));
    else if (live && !options.quiet)
      progress.status(describe_status(options, record, eta));
  }
  if (milliseconds > 0)
    result.tokens_per_second = static_cast<double>(result.steps.size()) *
                               static_cast<double>(options.batch * options.context) / milliseconds * 1e3;

  if (options.save.empty() && result.interrupted && device.is_cpu() && options.stop_after == 0)
    options.save = "poolgrad-train.safetensors";
  if (!options.save.empty()) {
    trainer.save(options.save);
    result.written.emplace_back("checkpoint", options.save);
  }
  if (!result.interrupted) {
    // A short run is not held up by a long text: at most a quarter of the bytes that were trained on.
    const std::int64_t batches = std::clamp<std::int64_t>(options.steps / 4, 1, trainer.validation_batches());
    result.validation_loss = trainer.validate(batches);
    result.validation_bytes = batches * trainer.validation_batch_bytes();
    result.prompt = prompt_from(trainer.corpus(), options.context);
    trainer.model().eval();
    result.sample = sample_text(trainer.model(), result.prompt, options.sample, temperature, options.seed, device);
  } else {
    result.validation_loss = result.validations.back().second;
    result.validation_bytes = interim_batches * trainer.validation_batch_bytes();
  }
  take_statistics(*pool, result);
  result.baselines = ngram_baselines(trainer.corpus().train, trainer.corpus().validation);
  result.seconds = seconds_since(start);
  if (!options.json.empty()) {
    result.written.emplace_back("report", options.json);
    write_json(options.json, options, result);
  }
  if (!options.csv.empty()) {
    result.written.emplace_back("steps", options.csv);
    write_csv(options.csv, result);
  }
  print(describe_result(options, result));
  return result;
}

}  // namespace poolgrad::examples
