#include "examples/headline/headline.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "attention/ring/ring.h"
#include "autograd/engine/engine.h"
#include "examples/support/options.h"
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
    const Stopwatch watch;
    if (work_.work == Work::training) {
      train();
    } else {
      const NoGradGuard guard;
      const Tensor out = forward({.out_over_q = work_.work == Work::forward_over_query});
      if (work_.work == Work::forward_over_query) q_ = out;
    }
    return watch.seconds();
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

void run_once(const AttentionWork& work, DType dtype, Device device) { Calls(work, dtype, device, 1).run(); }

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

Row attention_row(std::string id, std::string label, const AttentionWork& work, const Theirs& theirs) {
  return {std::move(id), std::move(label), work.batch,
          work.tokens,   theirs,           [work](Bench& bench) { return measure(work, bench); }};
}

}  // namespace poolgrad::examples
