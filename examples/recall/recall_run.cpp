#include "examples/recall/recall_run.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "allocator/caching_allocator.h"
#include "examples/recall/recall_report.h"
#include "examples/recall/recall_trainer.h"
#include "examples/support/interrupt.h"
#include "examples/support/progress.h"

namespace poolgrad::examples {

namespace {

/// How much of steps and seconds is gone, and how long the rest takes.
class Budget {
 public:
  explicit Budget(const RecallOptions& options) : options_(options) {}

  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double processor_seconds() const { return static_cast<double>(std::clock() - processor_start_) / CLOCKS_PER_SEC; }
  double used(std::int64_t steps) const {
    const double by_steps = options_.steps ? static_cast<double>(steps) / static_cast<double>(options_.steps) : 0.0;
    return std::max(by_steps, options_.seconds > 0 ? seconds() / options_.seconds : 0.0);
  }
  /// At the present pace; steps at far distances are slower than those before.
  double eta(std::int64_t steps) const {
    const double done = used(steps);
    return done > 0 ? seconds() * (1.0 - done) / done : 0.0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const RecallOptions& options_;
  Clock::time_point start_ = Clock::now();
  std::clock_t processor_start_ = std::clock();
};

RecallResult run_one(const RecallOptions& options, const AttentionOptions& attention, std::ostream& out, bool live) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  RecallTrainer trainer(options, attention);
  RecallResult result{.attention = attention.attention,
                      .pattern = attention.describe(options.task().length()),
                      .parameters = trainer.parameter_count()};
  Progress progress(out, live && !options.quiet);
  const auto print = [&](const std::string& text) {
    if (!options.quiet) progress.line(text);
  };
  print(describe_contender(options, result));

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
      progress.status(describe_status(options, result, trainer.curriculum(), budget.used(step), budget.eta(step)));
  }
  result.seconds = budget.seconds();
  result.processor_seconds = budget.processor_seconds();
  result.tokens = trainer.tokens();
  result.learned = trainer.curriculum().done();
  result.peak_bytes = pool.statistics().allocated_bytes.peak;
  for (const std::int64_t distance : scored_distances(options.distance)) {
    if (live && !options.quiet) progress.status("asking at distance " + std::to_string(distance));
    result.scores.push_back(trainer.score(distance, options.questions));
  }
  print(describe_end(result));
  return result;
}

}  // namespace

std::vector<RecallResult> run_recall(const RecallOptions& options, std::ostream& out, bool live) {
  options.check();
  const InterruptGuard interrupts;
  Progress progress(out, false);
  if (!options.quiet) progress.line(describe_task(options));
  std::vector<RecallResult> results;
  for (const std::string& name : options.contenders()) {
    results.push_back(run_one(options, options.contender(name), out, live));
    if (results.back().interrupted) break;
  }
  if (!options.quiet) progress.line(describe_results(options, results));
  if (!options.json.empty()) write_recall_json(options.json, options, results);
  if (!options.csv.empty()) write_recall_csv(options.csv, results);
  return results;
}

}  // namespace poolgrad::examples
