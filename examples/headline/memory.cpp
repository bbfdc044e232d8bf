// How a row is measured. What a pool is worth: the longest sequence in 8 GiB, by search on a simulated device of that
// size with a pool and without; and shapes that change from call to call, with the pool and with memory that goes back
// after every call.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "attention/ring/ring.h"
#include "autograd/engine/engine.h"
#include "examples/headline/headline.h"
#include "examples/support/options.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

/// The tensors of a row, and one call after another on them.
class Calls {
 public:
  Calls(const AttentionWork& work, DType dtype, Device device, std::uint64_t seed) : work_(work) {
    Generator generator(seed);
    const Shape shape{work.batch, work.tokens, work.heads, work.head_dim};
    const auto input = [&](Category category) {
      const MemoryScope scope("headline", category);
      return uniform(shape, -1.0, 1.0, {.dtype = dtype, .device = device}, generator);
    };
    q_ = input(Category::query), k_ = input(Category::key), v_ = input(Category::value);
    if (work.work == Work::training) grad_ = input(Category::gradient);
  }

  /// Seconds of one call.
  double run() {
    return seconds_of(q_.device(), [&] {
      if (work_.work == Work::training) return train();
      const NoGradGuard guard;
      const Tensor out = forward({.out_over_q = work_.work == Work::forward_over_query});
      if (work_.work == Work::forward_over_query) q_ = out;
    });
  }

 private:
  Tensor forward(const attention::AttendOptions& options) {
    if (work_.ring > 1)
      return attention::ring_attend_all(q_, k_, v_, work_.pattern, work_.ring, {.attend = options}).out;
    return attention::attend(q_, k_, v_, work_.pattern, options).out;
  }
  /// The gradients are taken, not added to leaves, as between the layers of a model.
  void train() {
    for (Tensor* x : {&q_, &k_, &v_}) x->set_requires_grad();
    grad({forward({.dq_over_out = true})}, {q_, k_, v_}, {grad_});
  }

  AttentionWork work_;
  Tensor q_, k_, v_, grad_;
};

/// One call on fresh tensors; throws OutOfMemoryError.
void run_once(const AttentionWork& work, DType dtype, Device device) { Calls(work, dtype, device, 1).run(); }

/// The bytes alone, on a device that is large enough.
void simulate(const AttentionWork& work, DType dtype, Outcome& outcome) {
  const Device device{DeviceType::sim, 0};
  allocator_for(device).trim();
  configure_simulated_device(0, static_cast<std::size_t>(1.1 * outcome.formula_bytes) + (std::size_t{1} << 30));
  CachingAllocator& pool = allocator_for(device);
  pool.reset_peaks();
  run_once(work, dtype, device);
  take_peaks(pool, outcome);
  outcome.simulated = true;
}

}  // namespace

void take_peaks(const CachingAllocator& pool, Outcome& outcome) {
  const Statistics statistics = pool.statistics();
  outcome.peak_bytes = static_cast<double>(statistics.allocated_bytes.peak);
  outcome.reserved_bytes = static_cast<double>(statistics.reserved_bytes.peak);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double operations_of(const AttentionWork& work) {
  const auto positions = kernels::PositionMap::contiguous(work.tokens);
  double pairs = 0;
  for (const kernels::AttentionSchedule& pass : work.pattern.compile(work.heads, positions, positions).passes)
    pairs += pass.count_pairs();
  const double forward = 4.0 * static_cast<double>(work.batch * work.head_dim) * pairs;
  return work.work == Work::training ? 3.5 * forward : forward;
}

double formula_bytes(const AttentionWork& work, DType dtype) {
  const auto rows = static_cast<double>(work.batch * work.tokens * work.heads);
  const double tensor = rows * static_cast<double>(work.head_dim) * static_cast<double>(size_of(dtype));
  const double statistic = 4.0 * rows;  // lse; delta
  switch (work.work) {
    case Work::forward: return 4 * tensor + statistic;
    case Work::forward_over_query: return 3 * tensor + statistic;
    case Work::training: return 7 * tensor + 2 * statistic;  // q, k, v, out = dq, dO, dk, dv
  }
  return 0;
}

namespace {

/// Runs it as often as it is worth, at least once.
Outcome measure(const AttentionWork& work, Bench& bench) {
  const DType dtype = bench.dtype;
  Outcome outcome;
  outcome.operations = operations_of(work);
  outcome.formula_bytes = formula_bytes(work, dtype);
  if (bench.device.is_cpu() && 1.01 * outcome.formula_bytes > static_cast<double>(bench.memory)) {
    simulate(work, dtype, outcome);
    outcome.remark = fmt::format("needs more than the {} of this machine", format_bytes(bench.memory));
    return outcome;
  }
  const double expected = bench.rate > 0 ? outcome.operations / bench.rate : 0;
  if (expected > bench.row_seconds) {
    simulate(work, dtype, outcome);
    outcome.remark = fmt::format("would take about {} here: --row-seconds", format_duration(expected));
    return outcome;
  }

  const PoolGuard pool(bench.device, work.budget);
  try {
    Calls calls(work, dtype, bench.device, bench.seed);
    std::vector<double> seconds{calls.run()};
    take_peaks(*pool, outcome);
    // The first call finds cold memory; short rows are repeated and the median counts.
    double spent = 0;
    for (int more = seconds[0] < 1 ? 5 : seconds[0] < 15 ? 1 : 0; more > 0 && spent < bench.row_seconds; --more) {
      if (outcome.calls == 0) seconds.clear();
      seconds.push_back(calls.run());
      spent += seconds.back();
      ++outcome.calls;
    }
    outcome.calls = std::max(outcome.calls, 1);
    outcome.milliseconds = 1e3 * median(seconds);
    bench.rate = std::max(bench.rate, outcome.operations / (1e-3 * *outcome.milliseconds));
  } catch (const OutOfMemoryError&) {
    outcome.remark = "out of memory" + (work.budget.empty() ? std::string() : " within " + work.budget);
  }
  return outcome;
}

}  // namespace

Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs) {
  return {std::move(id), std::move(label), work.batch,
          work.tokens,   theirs,           [work](Bench& bench) { return measure(work, bench); }};
}

namespace {

constexpr std::size_t capacity = std::size_t{8} << 30;
constexpr std::int64_t step = 512;

/// sim:index with 8 GiB, made with these options the first time.
Device simulated(int index, const char* options) {
  const char* given = std::getenv("POOLGRAD_ALLOCATOR");
  const std::string before = given ? given : "";
  setenv("POOLGRAD_ALLOCATOR", options, 1);
  configure_simulated_device(index, capacity);
  given ? setenv("POOLGRAD_ALLOCATOR", before.c_str(), 1) : unsetenv("POOLGRAD_ALLOCATOR");
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

bool fits(AttentionWork work, std::int64_t tokens, DType dtype, Device device) {
  work.tokens = tokens;
  CachingAllocator& pool = allocator_for(device);
  pool.trim();
  pool.reset_peaks();
  try {
    run_once(work, dtype, device);
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

Outcome longest(const AttentionWork& work, int index, const char* options, Bench& bench) {
  const Device device = simulated(index, options);
  std::int64_t good = step, bad = 16 * 1024 * step;
  while (bad - good > step) {
    const std::int64_t middle = (good + bad) / 2 / step * step;
    (fits(work, middle, bench.dtype, device) ? good : bad) = middle;
  }
  fits(work, good, bench.dtype, device);
  AttentionWork largest = work;
  largest.tokens = good;
  Outcome outcome;
  outcome.simulated = true;
  outcome.formula_bytes = formula_bytes(largest, bench.dtype);
  take_peaks(allocator_for(device), outcome);
  outcome.tokens = good;
  return outcome;
}

constexpr std::pair<std::int64_t, std::int64_t> shapes[] = {{2, 512}, {4, 1024}, {1, 512}, {3, 1024}, {2, 1536}};

struct Cycles {
  double milliseconds = 0;  // of a call: the median over rounds of the mean over shapes
  double hit_rate = 0;
  std::vector<Tensor> last;  // the outputs of the last round
};

/// Rounds over all shapes; the first ones warm up.
Cycles run_cycles(Bench& bench, CachingAllocator& pool, bool keep) {
  constexpr int warm = 2, rounds = 9;
  const NoGradGuard guard;
  const auto pattern =
      attention::Pattern::dilated({128, 256, 512}, {1, 2, 4}, {.mode = attention::DilatedMode::grouped});
  const TensorOptions options{.dtype = bench.dtype, .device = bench.device};
  Generator generator(bench.seed);
  std::vector<Tensor> inputs;
  for (const auto& [batch, tokens] : shapes)
    inputs.push_back(uniform({batch, tokens, 8, 64}, -1, 1, options, generator));

  Cycles result;
  std::vector<double> times;
  Statistics before{};
  for (int round = 0; round < warm + rounds; ++round) {
    if (round == warm) before = pool.statistics();
    result.last.clear();
    double spent = 0;
    for (const Tensor& x : inputs) {
      spent += 1e3 * seconds_of(bench.device, [&] {
                 const Tensor q = x.copy(), k = x.copy(), v = x.copy();
                 result.last.push_back(attention::attend(q, k, v, pattern).out);
                 if (!keep) pool.trim();
               });
    }
    if (round >= warm) times.push_back(spent / std::size(shapes));
  }
  const Statistics after = pool.statistics();
  result.milliseconds = median(times);
  result.hit_rate = static_cast<double>(after.pool_hits - before.pool_hits) /
                    static_cast<double>(std::max<std::uint64_t>(1, after.requests - before.requests));
  return result;
}

Outcome run_shapes(Bench& bench) {
  CachingAllocator& pool = allocator_for(bench.device);
  pool.trim();
  const Cycles cold = run_cycles(bench, pool, false);
  pool.trim();
  pool.reset_peaks();
  const Cycles warm = run_cycles(bench, pool, true);
  Outcome outcome;
  outcome.milliseconds = warm.milliseconds;
  outcome.calls = 9 * static_cast<int>(std::size(shapes));
  take_peaks(pool, outcome);
  outcome.remark = fmt::format("{:.2f} ms where memory goes back after each call: {:.2f}x; hit rate {:.3f}; {}",
                               cold.milliseconds, cold.milliseconds / warm.milliseconds, warm.hit_rate,
                               std::ranges::equal(cold.last, warm.last, bit_equal) ? "same bits" : "RESULTS DIFFER");
  return outcome;
}

}  // namespace

Group memory_limits() {
  using attention::Pattern;
  Group group{"longest",
              "The longest sequence in 8 GiB (reports 000 and 002)",
              "A pool does not make memory: with and without it the same number of tokens fits (theirs: \"65,536 with "
              "the pool, "
              "24,576 without\"). What decides is what "
              "must live at once. Searched in steps of 512 tokens on a simulated device; no arithmetic is done.",
              {}};
  struct Search {
    const char *id, *label, *options;
    Work work;
    int device;
    Theirs theirs;
  };
  const Search searches[] = {{"longest-pool", "forward, with the pool", "", Work::forward, 1, {}},
                             {"longest-no-pool", "forward, without a pool", "mode:none", Work::forward, 2, {}},
                             {"longest-over-query", "forward, out over q", "", Work::forward_over_query, 1, {}},
                             {"longest-training", "forward and backward", "", Work::training, 1, {}}};
  for (const Search& search : searches) {
    const AttentionWork work{.work = search.work, .pattern = Pattern::dilated_sparse(128)};
    group.rows.push_back({search.id, search.label, 1, 0, search.theirs,
                          [=](Bench& bench) { return longest(work, search.device, search.options, bench); }});
  }
  return group;
}

Group varying_shapes() {
  return {
      "shapes",
      "Shapes that vary from call to call (report 003)",
      "\"8.44 ms to 2.43 ms, 3.47 times\" is in no script of the original; its pool never got its outputs back. Here: "
      "five shapes in turn, segments 128, 256 and 512, the same calls with the pool and with every cached page "
      "given back after each call.",
      {{"shapes", "five shapes, with the pool", 0, 0, {2.43}, run_shapes}}};
}

}  // namespace poolgrad::examples
