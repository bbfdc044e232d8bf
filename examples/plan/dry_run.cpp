#include "examples/plan/dry_run.h"

#include <algorithm>
#include <atomic>
#include <ostream>

#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

constexpr std::int64_t steps_of_run = 8;  // a pool learns how steps go: it may want a page more until then
constexpr std::size_t traced_events = std::size_t{1} << 19;

/// A pool remembers how steps went, and which pages it had: a run that is to be exact has a device that nobody has
/// used, while there are any.
Device device_like_cpu(std::size_t memory, Through through) {
  constexpr int first = 101, last = 255;
  static std::atomic<int> unused{first};
  const int index = through == Through::run && unused <= last ? std::min(unused++, last) : first - 1;
  configure_simulated_device(index, memory, "cpu");
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

/// A trainer on a simulated device of its own, and the pool's guard.
class Simulation {
 public:
  Simulation(TrainOptions options, std::size_t memory, Through through)
      : device_(device_like_cpu(memory, through)), pool_(device_, options.budget), generator_(options.seed) {
    options.steps = std::min<std::int64_t>(options.steps, through == Through::run ? steps_of_run : 2);
    options.budget = std::to_string(memory);
    options.check();
    if (options.checkpoint == "auto") options.checkpoint = "none";  // a plan says what there is to be saved
    policy_ = options.memory_policy(device_);
    // What it says is not read; it must only be long enough, to validate on as much as on any.
    const auto length = static_cast<std::size_t>(options.context);
    const std::size_t held_out = 8 * static_cast<std::size_t>(options.batch) * length;
    nn::Corpus text{std::vector<std::uint8_t>(length + 2), std::vector<std::uint8_t>(held_out + 1), 1};
    trainer_ = options.make_trainer(std::move(text), device_, generator_);
  }

  nn::Trainer& trainer() { return *trainer_; }
  Rematerialisation* policy() { return policy_.get(); }
  CachingAllocator& pool() { return *pool_; }
  std::uint64_t clock() const { return device_clock(device_); }

 private:
  kernels::OnThisThread alone_;
  Device device_;
  PoolGuard pool_;
  std::unique_ptr<Rematerialisation> policy_;
  Generator generator_;
  std::unique_ptr<nn::Trainer> trainer_;
};

}  // namespace

DryRun dry_run(const TrainOptions& options, std::size_t memory, Through through) {
  DryRun result;
  CachingAllocator* pool = nullptr;
  try {
    Simulation simulation(options, memory, through);
    pool = &simulation.pool();
    nn::Trainer& trainer = simulation.trainer();
    result.parameters = trainer.model().parameter_count();
    if (through == Through::run) {
      std::ostream nowhere(nullptr);
      nn::train(trainer, nowhere,
                {.report = options.report, .sample = options.sample, .quiet = true, .memory = simulation.policy()});
    } else {
      trainer.step();
      const std::uint64_t before = simulation.clock();
      trainer.step();
      result.step_seconds = 1e-9 * static_cast<double>(simulation.clock() - before);
    }
    const Statistics statistics = pool->statistics();
    result.peak_live = statistics.allocated_bytes.peak;
    result.peak_reserved = statistics.reserved_bytes.peak;
    for (std::size_t i = 0; i < category_count; ++i) result.peak_by_category[i] = statistics.category_bytes[i].peak;
  } catch (const OutOfMemoryError& error) {
    result.fits = false;
    result.refusal = error.what();
  }
  return result;
}

Trace trace_of_step(const TrainOptions& options, std::size_t memory) {
  Simulation simulation(options, memory, Through::steps);
  simulation.trainer().step();
  simulation.pool().start_trace(traced_events);
  simulation.trainer().step();
  simulation.pool().stop_trace();
  return simulation.pool().trace();
}

namespace {

/// The context at which the bytes of two short ones, which grow along a line, reach `memory`.
std::int64_t guess_context(TrainOptions options, std::size_t memory, std::int64_t most) {
  const std::int64_t lengths[] = {std::max<std::int64_t>(2048, 4 * options.chunk),
                                  2 * std::max<std::int64_t>(2048, 4 * options.chunk)};
  double bytes[2];
  for (int i = 0; i < 2; ++i) {
    options.context = std::min(lengths[i], most);
    const DryRun run = dry_run(options, no_limit, Through::steps);
    if (!run.fits) return options.context;
    bytes[i] = static_cast<double>(run.peak_live);
  }
  const double per_token = (bytes[1] - bytes[0]) / static_cast<double>(lengths[1] - lengths[0]);
  if (!(per_token > 0)) return most;
  const double guess = static_cast<double>(lengths[0]) + (static_cast<double>(memory) - bytes[0]) / per_token;
  return static_cast<std::int64_t>(std::clamp(guess, 1.0, static_cast<double>(most)));
}

}  // namespace

Longest longest_context(TrainOptions options, std::size_t memory, std::int64_t most) {
  Longest best;
  const auto fits = [&](std::int64_t context) {
    options.context = context;
    DryRun run = dry_run(options, memory, Through::steps);
    if (!run.fits) return false;
    if (context > best.context) best = {context, std::move(run)};
    return true;
  };
  // A context that fits and one that does not, twice as far from the guess each time.
  std::int64_t low = guess_context(options, memory, most), high = low;
  std::int64_t reach = std::max<std::int64_t>(1, low / 256);
  if (fits(low)) {
    do {
      low = high;
      if (low == most) return best;
      high = std::min(most, high + reach);
      reach *= 2;
    } while (fits(high));
  } else {
    do {
      high = low;
      if (high == 1) return best;
      low = std::max<std::int64_t>(1, low - reach);
      reach *= 2;
    } while (!fits(low));
  }
  const std::int64_t grain = std::max<std::int64_t>(1, low / 1024);
  while (high - low > grain) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return best;
}

}  // namespace poolgrad::examples
