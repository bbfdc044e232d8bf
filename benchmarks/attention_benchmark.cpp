// Fused attention, forward and backward. `FLOPS` counts the pairs that the schedule admits, 4 D for the forward pass
// and 10 D for the backward pass, whatever the kernels recompute; run with --benchmark_repetitions=5 and read the
// medians.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention.h"

namespace poolgrad::kernels {
namespace {

enum Pass { forward, backward };
enum Pattern { full, causal, window_256 };

BandSchedule schedule_of(Pattern pattern) {
  switch (pattern) {
    case full: return {};
    case causal: return {BandSchedule::unbounded, 0, 0};
    default: return {255, 0, 0};
  }
}

/// (B, N, H, D), filled at random.
template <class S>
struct Operand {
  std::vector<S> data;
  View view;
  Operand(std::int64_t batch, std::int64_t n, std::int64_t heads, std::int64_t depth, unsigned seed)
      : data(static_cast<std::size_t>(batch * n * heads * depth)),
        view{data.data(), dtype_of<S>, 4, {batch, n, heads, depth}, {n * heads * depth, heads * depth, depth, 1}} {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (S& x : data) x = S(normal(random));
  }
};

template <class S>
void run(benchmark::State& state, Pass pass, Pattern pattern) {
  const std::int64_t batch = state.range(0), n = state.range(1), heads = state.range(2), depth = state.range(3);
  const auto operand = [&](unsigned seed) { return Operand<S>(batch, n, heads, depth, seed); };
  const auto q = operand(1), k = operand(2), v = operand(3), grad = operand(4);
  auto out = operand(5), dq = operand(5), dk = operand(5), dv = operand(5);
  std::vector<float> statistics(static_cast<std::size_t>(batch * heads * n));
  const View lse{statistics.data(), DType::f32, 3, {batch, heads, n}, {heads * n, n, 1}};
  const BandSchedule schedule = schedule_of(pattern);
  const double scale = 1.0 / std::sqrt(static_cast<double>(depth));
  attention_forward({}, schedule, scale, q.view, k.view, v.view, out.view, lse);
  for (auto _ : state) {
    if (pass == forward)
      attention_forward({}, schedule, scale, q.view, k.view, v.view, out.view, lse);
    else
      attention_backward({}, schedule, scale, q.view, k.view, v.view, out.view, lse, grad.view, {}, dq.view, dk.view,
                         dv.view);
  }
  const double products = pass == forward ? 4.0 : 10.0;
  state.counters["FLOPS"] =
      benchmark::Counter(products * static_cast<double>(batch * heads * depth) * schedule.count_pairs(n, n),
                         benchmark::Counter::kIsIterationInvariantRate);
}

template <class S>
void register_dtype(const std::string& dtype) {
  for (const auto& [pattern, pattern_name] : {std::pair{full, "full"}, {causal, "causal"}, {window_256, "window_256"}})
    for (const auto& [pass, pass_name] : {std::pair{forward, "forward"}, {backward, "backward"}})
      benchmark::RegisterBenchmark(("Attention/" + dtype + "/" + pattern_name + "/" + pass_name).c_str(), run<S>, pass,
                                   pattern)
          ->ArgNames({"batch", "n", "heads", "depth"})
          ->Args({12, 64, 4, 32})
          ->Args({8, 256, 6, 32})
          ->Args({8, 512, 4, 64})
          ->Args({1, 1024, 8, 64})
          ->Args({1, 4096, 4, 64})
          ->Args({1, 16384, 1, 64})
          ->Args({1, 2048, 4, 128})
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace poolgrad::kernels

int main(int count, char** arguments) {
  using namespace poolgrad;
  kernels::register_dtype<float>("f32");
  kernels::register_dtype<BFloat16>("bf16");
  benchmark::Initialize(&count, arguments);
  if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
