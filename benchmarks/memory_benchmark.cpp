// The time cost of a training step under a memory policy. Each iteration takes a step of an 8-layer transformer without
// a limit and one under a policy, in turn.
//
//   B, T, C   batch, context, width; heads of 32, causal attention, f32
//   percent   MemoryBudget of that share of the pool's reserved bytes without one; 0: selective checkpointing
//   ratio     time under the policy over time without, median over iterations
//   again     recomputed work over the forward's, in the prices of the device model
//
// offloading_step alternates a step that moves each saved tensor to a file in the working folder with a step that keeps
// them. ratio is the first time over the second, median over iterations.
#include <exception>
#include <optional>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "autograd/memory/memory_budget.h"
#include "benchmarks/support.h"
#include "tensor/creation.h"

namespace {

using namespace poolgrad;

class LimitedStep {
 public:
  LimitedStep(std::int64_t batch, std::int64_t context, std::int64_t width)
      : model_(attention::make_language_model({.vocabulary = 256,
                                               .context = context,
                                               .layers = 8,
                                               .width = width,
                                               .heads = width / 32,
                                               .kv_heads = width / 32},
                                              attention::Pattern::causal())),
        tokens_(randint(0, 256, {batch, context})),
        targets_(randint(0, 256, {batch, context})) {}

  void run() {
    model_->zero_grad();
    model_->loss(tokens_, targets_).backward();
  }
  /// Empties the pool; the step then fills it.
  void prepare() {
    allocator_for(cpu).trim();
    run();
  }
  double seconds() {
    return seconds_of([&] { run(); });
  }

 private:
  std::unique_ptr<nn::LanguageModel> model_;
  Tensor tokens_, targets_;
};

void step_in_memory(benchmark::State& state) {
  const auto percent = static_cast<std::size_t>(state.range(3));
  LimitedStep step(state.range(0), state.range(1), state.range(2));
  CachingAllocator& pool = allocator_for(cpu);
  const auto peak = [&] { return pool.statistics().reserved_bytes.peak; };
  pool.trim();
  pool.reset_peaks();
  step.run();
  const std::size_t unlimited = peak();
  std::vector<double> ratios;
  RematerialisationStatistics before, after;
  std::size_t limited = 0;
  for (auto _ : state) try {
      step.prepare();
      const double without = step.seconds();
      pool.trim();
      std::optional<MemoryBudget> budget;
      std::optional<Rematerialisation> selective;
      if (percent > 0)
        budget.emplace(unlimited * percent / 100, cpu);
      else
        selective.emplace(RematerialisationOptions{.drop_below = 1.0});
      pool.reset_peaks();
      const auto statistics = [&] { return budget ? budget->statistics() : selective->statistics(); };
      step.prepare();
      before = statistics();
      const double within = step.seconds();
      after = statistics();
      limited = std::max(limited, peak());
      ratios.push_back(within / without);
      state.SetIterationTime(within);
    } catch (const std::exception&) {
      state.SkipWithError("does not fit");
      return;
    }
  state.SetItemsProcessed(state.iterations() * state.range(0) * state.range(1));
  state.counters["ratio"] = median(ratios);
  state.counters["peak_MiB"] = static_cast<double>(limited) / (1 << 20);
  state.counters["of_unlimited"] = static_cast<double>(limited) / static_cast<double>(unlimited);
  const double recorded = after.recorded_nanoseconds - before.recorded_nanoseconds;
  state.counters["again"] = (after.recomputed_nanoseconds - before.recomputed_nanoseconds) / recorded;
}

void offloading_step(benchmark::State& state) {
  LimitedStep step(state.range(0), state.range(1), state.range(2));
  std::vector<double> ratios;
  RematerialisationStatistics statistics;
  for (auto _ : state) {
    const double without = step.seconds();
    const Rematerialisation policy({.offload_folder = ".", .offload_all = true});
    const double seconds = step.seconds();
    statistics = policy.statistics();
    ratios.push_back(seconds / without);
    state.SetIterationTime(seconds);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0) * state.range(1));
  state.counters["ratio"] = median(ratios);
  state.counters["moved_MiB"] = static_cast<double>(statistics.offloaded_bytes) / (1 << 20);
}
BENCHMARK(offloading_step)
    ->ArgNames({"B", "T", "C"})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(9)
    ->Args({1, 1024, 128})
    ->Args({1, 1024, 256});

void shares(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "T", "C", "percent"})->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(5);
  for (const std::int64_t percent : {110, 80, 60, 50, 40, 30, 20, 15, 0}) benchmark->Args({1, 4096, 128, percent});
  for (const std::int64_t percent : {110, 50, 30, 25, 20, 0}) benchmark->Args({1, 2048, 256, percent});
}
BENCHMARK(step_in_memory)->Apply(shares);

}  // namespace

int main(int argc, char** argv) { return poolgrad::run_benchmarks(argc, argv); }
