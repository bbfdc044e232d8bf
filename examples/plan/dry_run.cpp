#include "examples/plan/dry_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/parallel.h"
#include "nn/text/byte_source.h"

namespace poolgrad::examples {

namespace {

constexpr std::int64_t interim_batches = 4, judged_batches = 2;  // later batches repeat earlier ones
constexpr std::int64_t prompt_tokens = 64;
constexpr std::size_t traced_events = std::size_t{1} << 19;
constexpr std::size_t host_bytes_of_token = 16;  // peak while reading a text

/// A simulated device with the pages of this machine's CPU or of a GPU, and more memory than any budget. A pool
/// remembers earlier steps and pages, so an exact run uses a fresh device while there are any.
Device device_like(bool gpu, Through through) {
  constexpr int first = 101, last = 255, often_like_cpu = 100, often_like_gpu = 99;
  static std::atomic<int> unused{first};
  const int often = gpu ? often_like_gpu : often_like_cpu;
  const int index = through == Through::run && unused <= last ? std::min(unused++, last) : often;
  configure_simulated_device(index, no_limit, gpu ? "" : "cpu");
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

/// A source of zeros that takes no memory.
class Zeros : public nn::ByteSource {
 public:
  explicit Zeros(std::size_t bytes) : bytes_(bytes) {}
  std::size_t size() const override { return bytes_; }
  void read(std::size_t, std::span<std::uint8_t> into) const override { std::ranges::fill(into, std::uint8_t{0}); }
  void release(std::size_t, std::size_t) const override {}

 private:
  std::size_t bytes_;
};

/// A corpus with these numbers of training and validation tokens, as wide as those of the options.
nn::Corpus stand_in_text(const TrainOptions& options, std::size_t train, std::size_t validation) {
  const std::size_t width = options.tokenizer == "bytes" ? 1 : 2;
  const auto text = [width](std::size_t tokens) {
    return nn::Text(std::make_shared<Zeros>(tokens * width), static_cast<std::int64_t>(width));
  };
  return {text(train), text(validation), 1};
}

/// The context warm-up with stages of at most a few steps, in which the blocks of the pool settle. A stage that the run
/// does not leave stays whole. Of two steps both have the whole context.
std::string short_warmup(const TrainOptions& options, Through through) {
  constexpr std::int64_t most = 8;
  std::vector<std::string> stages;
  std::int64_t before = 0, steps = 0;
  for (const auto& [context, last_step] : options.warmup().stages) {
    if (through == Through::steps || context >= options.context || before >= options.steps) break;
    steps = last_step >= options.steps ? options.steps : steps + std::min(most, last_step - before);
    stages.push_back(fmt::format("{}:{}", context, steps));
    before = last_step;
  }
  return stages.empty() ? "none" : fmt::format("{}", fmt::join(stages, ","));
}

/// A trainer on its own simulated device, and the pool's guard.
class Simulation {
 public:
  Simulation(TrainOptions options, std::size_t memory, Through through)
      : device_(device_like(options.device.starts_with("cuda"), through)),
        pool_(device_, std::to_string(memory)),
        generator_(options.seed) {
    if (through == Through::steps) options.steps = std::min<std::int64_t>(options.steps, 2);
    options.budget = std::to_string(memory);
    options.context_warmup = short_warmup(options, through);
    options.check();
    if (options.checkpoint == "auto") options.checkpoint = "none";  // shows the possible savings
    policy_ = options.memory_policy(device_);
    // Only the length of the prompt matters: long enough to be as large as any validation.
    const auto length = static_cast<std::size_t>(options.context);
    if (length > allocator_for(cpu).memory().info().total / host_bytes_of_token)
      throw ValueError(fmt::format(
          "[plan] --context {}: a text of so many tokens does not fit in the memory of this machine", length));
    const std::size_t validation = through == Through::run ? 8 * static_cast<std::size_t>(options.batch) * length : 1;
    trainer_ = options.make_trainer(stand_in_text(options, length + 2, validation + 1), device_, generator_);
  }

  nn::Trainer& trainer() { return *trainer_; }
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

namespace {

/// The blocks of a pool and the bytes in use of each.
using Places = std::vector<std::array<std::size_t, 4>>;

Places places_of(const CachingAllocator& pool) {
  Places places;
  for (const BlockSnapshot& block : pool.snapshot())
    places.push_back({block.address, block.size, static_cast<std::size_t>(block.state), block.requested});
  return places;
}

/// The steps of a run until they repeat, their validations, and the end of the run.
void go_through(nn::Trainer& trainer, const TrainOptions& options, const std::function<void()>& step) {
  Places before;
  int repeated = 0;
  const std::int64_t last_context = std::min(options.context, options.warmup().context(options.steps, options.context));
  for (std::int64_t done = 1; done <= options.steps && repeated < 2; ++done) {
    const std::int64_t context = trainer.step_context();
    step();
    Places after = places_of(trainer.pool());
    repeated = after == before && context == last_context ? repeated + 1 : 0;
    before = std::move(after);
    const bool ends_a_stage = context != trainer.step_context();
    if (done == 1 || done % options.report == 0 || repeated == 1 || ends_a_stage) trainer.validate(interim_batches);
  }
  if (options.steps > 0) trainer.validate(interim_batches);
  trainer.loss_by_position(judged_batches);
  const std::int64_t prompt = std::clamp<std::int64_t>(options.context / 2, 1, prompt_tokens);
  trainer.sample(std::vector<std::int64_t>(static_cast<std::size_t>(prompt)), options.sample);
}

}  // namespace

DryRun dry_run(const TrainOptions& options, std::size_t memory, Through through) {
  DryRun result;
  CachingAllocator* pool = nullptr;
  try {
    Simulation simulation(options, memory, through);
    pool = &simulation.pool();
    nn::Trainer& trainer = simulation.trainer();
    result.parameters = trainer.model().parameter_count();
    const auto step = [&] {
      const std::uint64_t before = simulation.clock();
      trainer.step();
      result.step_seconds = 1e-9 * static_cast<double>(simulation.clock() - before);
    };
    if (through == Through::run) {
      go_through(trainer, options, step);
    } else {
      step();
      step();
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

std::size_t smallest_budget(TrainOptions options, std::size_t too_small) {
  constexpr std::size_t unit = std::size_t{1} << 20;
  options.checkpoint = options.checkpoint_policy();
  options.check();
  options.budget.clear();
  const auto trains = [&](std::size_t units, Through through) { return dry_run(options, units * unit, through).fits; };
  std::size_t low = too_small / unit, high = low + 1;
  while (!trains(high, Through::steps)) {
    low = high;
    high += 1 + high / 4;
    if (high > no_limit / unit) return 0;
  }
  while (high - low > 1 + high / 64) {
    const std::size_t middle = low + (high - low) / 2;
    (trains(middle, Through::steps) ? high : low) = middle;
  }
  for (; !trains(high, Through::run); high += 1 + high / 64)  // a sample may need more than a step
    if (high > no_limit / unit) return 0;
  return high * unit;
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

/// The x of the line through two points at height y.
double on_line(double x0, double y0, double x1, double y1, double y) { return x0 + (y - y0) * (x1 - x0) / (y1 - y0); }

}  // namespace

/// Extrapolates linearly from two short contexts to the one that needs `memory` bytes.
double ContextSearch::short_runs(std::size_t memory) const {
  TrainOptions options = options_;
  double contexts[2], bytes[2];
  for (int i = 0; i < 2; ++i) {
    options.context = std::min((i + 1) * std::max<std::int64_t>(2048, 4 * options.chunk), most_);
    contexts[i] = static_cast<double>(options.context);
    const DryRun run = dry_run(options, no_limit, Through::steps);
    if (!run.fits) return contexts[i];
    bytes[i] = static_cast<double>(run.peak_live);
  }
  if (bytes[1] <= bytes[0]) return static_cast<double>(most_);
  return on_line(contexts[0], bytes[0], contexts[1], bytes[1], static_cast<double>(memory));
}

Longest ContextSearch::search(std::int64_t guess, std::size_t memory, Through through, bool& bounded) {
  Longest best;
  const auto fits = [&](std::int64_t context) {
    options_.context = context;
    DryRun run = dry_run(options_, memory, through);
    if (!run.fits) return false;
    if (context > best.context) best = {context, std::move(run)};
    return true;
  };
  const auto grain = [](std::int64_t context) { return std::max<std::int64_t>(1, context / 1024); };
  // Brackets the limit between a context that fits and one that does not, with growing steps from the guess.
  std::int64_t low = guess, high = guess;
  std::int64_t reach = (answers_.size() < 2 ? 4 : 1) * grain(low);
  bool ends = false;
  if (fits(low)) {
    do {
      low = high;
      ends = low == most_;
      high = std::min(most_, high + reach);
      reach *= 4;
    } while (!ends && fits(high));
  } else {
    do {
      high = low;
      ends = high == 1;
      low = std::max<std::int64_t>(1, low - reach);
      reach *= 4;
    } while (!ends && !fits(low));
  }
  while (!ends && high - low > grain(low)) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  bounded = !ends;
  return best;
}

Longest ContextSearch::in(std::size_t memory) {
  if (const auto found = found_.find(memory); found != found_.end()) return found->second;
  const auto known = answers_.size();
  const double bytes = static_cast<double>(memory);
  double guess = 0;
  if (known == 0) {
    guess = short_runs(memory);
  } else {
    const Answer last = answers_[known - 1], before = known == 1 ? Answer{0, 0} : answers_[known - 2];
    guess = on_line(before.context, before.memory, last.context, last.memory, bytes);
  }
  bool bounded = false;
  const auto first = static_cast<std::int64_t>(std::clamp(guess, 1.0, static_cast<double>(most_)));
  Longest best = search(first, memory, Through::steps, bounded);
  if (best.context != 0) {
    options_.context = best.context;
    best.run = dry_run(options_, memory);
    if (!best.run.fits) best = search(best.context, memory, Through::run, bounded);
    if (bounded) answers_.push_back({bytes, static_cast<double>(best.context)});
  }
  found_.emplace(memory, best);
  return best;
}

}  // namespace poolgrad::examples
