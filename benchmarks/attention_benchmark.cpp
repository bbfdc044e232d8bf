// attend(): the forward pass, and forward and backward together; the plans of rings.
//
//   attention_benchmark                                           as Google Benchmark shows it
//   attention_benchmark --serve DTYPE PATTERN PASS B NQ NK H D    waits for lines; answers each with the milliseconds
//                                                                 of one call
//
// `FLOPS` counts the pairs that the pattern admits, with their multiplicity: 4 D for the forward pass and 10 D for the
// backward pass, whatever the kernels recompute. Run with --benchmark_repetitions=5 and read the medians.
// --device=cuda:0 measures a GPU; POOLGRAD_BENCHMARK_SMALL=1: a tiny size. benchmarks/peers/sdpa.py uses the second
// form to alternate with PyTorch.
#include <cstdlib>
#include <optional>
#include <utility>

#include "attention/attend.h"
#include "attention/ring/plan.h"
#include "autograd/engine/engine.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/recurrence.h"
#include "benchmarks/support.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace {

using namespace poolgrad;
using attention::Pattern;

Device device;  // --device

const std::vector<std::pair<std::string, DType>> dtypes = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};

struct Case {
  Pattern pattern;
  double dropout = 0.0;
  std::optional<DeltaRuleOptions> recurrent = {};  // gated_delta_rule() in place of attend()
};

const std::vector<std::pair<std::string, Case>>& cases() {
  static const Pattern dilated = Pattern::dilated({512, 1024, 2048}, {1, 2, 4}),
                       random = Pattern::random_blocks(128, 0.25, 1);
  static const std::vector<std::pair<std::string, Case>> all = {
      {"dense", {Pattern::dense()}},
      {"causal", {Pattern::causal()}},
      {"causal_dropout", {Pattern::causal(), 0.1}},
      {"window_256", {Pattern::causal() & Pattern::window(255, 0)}},
      {"dilated", {dilated}},
      {"dilated_causal", {dilated & Pattern::causal()}},
      {"blocks", {Pattern::dilated_sparse(128)}},
      {"blocks_causal", {Pattern::dilated_sparse(128) & Pattern::causal()}},
      {"dilated_plus_random", {dilated + random}},  // visits the keys of the union without a mask
      {"dilated_or_random", {dilated | random}},
      {"delta", {Pattern::causal(), 0.0, DeltaRuleOptions{}}},
      {"gla", {Pattern::causal(), 0.0, DeltaRuleOptions{.delta = false}}},
  };
  return all;
}

/// One call on operands of its own: forward without a graph, or forward and backward.
class Call {
 public:
  Call(DType dtype, const Case& of, bool backward, std::int64_t batch, std::int64_t queries, std::int64_t keys,
       std::int64_t heads, std::int64_t depth)
      : pattern_(of.pattern), options_{.dropout = of.dropout}, recurrent_(of.recurrent), backward_(backward) {
    const auto operand = [&](std::int64_t length) {
      Tensor x = randn({batch, length, heads, depth}, {dtype, device});
      x.set_requires_grad(backward);
      return x;
    };
    q_ = operand(queries), k_ = operand(keys), v_ = operand(keys);
    gradient_ = randn({batch, queries, heads, depth}, {dtype, device});
    if (recurrent_) {  // products of D x D a position: forward 7 (4 without delta), backward 20 (10)
      const TensorOptions wide{compute_dtype(dtype), device};
      k_ = (k_ * 0.125).detach().set_requires_grad(backward);
      beta_ = rand({batch, keys, heads}, 0.0, 1.0, wide).set_requires_grad(backward);
      gate_ = rand({batch, keys, heads}, -0.1, 0.0, wide).set_requires_grad(backward);
      const double products = recurrent_->delta ? (backward ? 27.0 : 7.0) : (backward ? 14.0 : 4.0);
      operations_ = products * 2.0 * static_cast<double>(batch * keys * heads * depth * depth);
      return;
    }
    const auto compiled = pattern_.compile(heads, kernels::PositionMap::contiguous(queries, keys - queries),
                                           kernels::PositionMap::contiguous(keys));
    double pairs = 0;
    for (const auto& pass : compiled.passes) pairs += pass.count_pairs();
    operations_ = (backward ? 14.0 : 4.0) * static_cast<double>(batch * depth) * pairs;
  }

  void run() {
    if (recurrent_ && backward_) {
      grad({gated_delta_rule(q_, k_, v_, beta_, gate_, {}, *recurrent_).out}, {q_, k_, v_, beta_, gate_}, {gradient_});
    } else if (recurrent_) {
      const NoGradGuard guard;
      gated_delta_rule(q_, k_, v_, beta_, gate_, {}, *recurrent_);
    } else if (backward_) {
      grad({attention::attend(q_, k_, v_, pattern_, options_).out}, {q_, k_, v_}, {gradient_});
    } else {
      const NoGradGuard guard;
      attention::attend(q_, k_, v_, pattern_, options_);
    }
  }
  double operations() const { return operations_; }

 private:
  Pattern pattern_;
  attention::AttendOptions options_;
  std::optional<DeltaRuleOptions> recurrent_;
  bool backward_;
  Tensor q_, k_, v_, gradient_, beta_, gate_;
  double operations_ = 0;
};

void measure(benchmark::State& state, DType dtype, const Case& of, bool backward) {
  try {
    Call call(dtype, of, backward, state.range(0), state.range(1), state.range(2), state.range(3), state.range(4));
    time_calls(state, device, [&] { call.run(); });
    state.counters["FLOPS"] = benchmark::Counter(call.operations(), benchmark::Counter::kIsIterationInvariantRate);
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

/// Makes the plan of a ring with 64 tokens per rank, and the queries of one rank: the cost of a first call.
void register_plans() {
  using attention::Layout;
  for (const auto& [name, of] : cases())
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
      const auto run = [pattern = of.pattern, layout](benchmark::State& state) {
        const auto ranks = static_cast<int>(state.range(0));
        for ([[maybe_unused]] auto _ : state) {
          const attention::RingPlan plan(pattern, layout, ranks, 8, 64 * ranks, 64 * ranks, 0);
          for (const int step : plan.visited()) benchmark::DoNotOptimize(plan.computes(ranks - 1, step));
        }
      };
      if (of.dropout == 0 && !of.recurrent)
        benchmark::RegisterBenchmark(("RingPlan/" + name + "/" + attention::to_string(layout)).c_str(), run)
            ->ArgName("ranks")
            ->Arg(small_sizes() ? 8 : 512)
            ->Unit(benchmark::kMillisecond);
    }
}

void register_all() {
  if (!device.is_cuda()) register_plans();
  for (const auto& [dtype_name, dtype] : dtypes)
    for (const auto& [case_name, of] : cases())
      for (const bool backward : {false, true}) {
        const std::string name =
            "Attention/" + dtype_name + "/" + case_name + "/" + (backward ? "forward_backward" : "forward");
        const auto run = [dtype = dtype, &of = of, backward](benchmark::State& state) {
          measure(state, dtype, of, backward);
        };
        auto* shapes = benchmark::RegisterBenchmark(name.c_str(), run)
                           ->ArgNames({"batch", "queries", "keys", "heads", "depth"})
                           ->UseRealTime()
                           ->Unit(benchmark::kMillisecond);
        if (small_sizes()) {
          shapes->Args({1, 48, 48, 2, 32});
          continue;
        }
        if (dtype == DType::f32 && case_name == "causal")  // short sequences of small models
          shapes->Args({12, 64, 64, 4, 32})->Args({8, 256, 256, 6, 32})->Args({1, 2048, 2048, 4, 128});
        shapes->Args({1, 1024, 1024, 8, 64})->Args({1, 4096, 4096, 4, 64})->Args({1, 16384, 16384, 1, 64});
        if (device.is_cuda()) shapes->Args({1, 4096, 4096, 16, 64})->Args({1, 16384, 16384, 4, 64});  // fills the GPU
        if (case_name == "dense" && !backward)  // decoding: one position against a cache
          shapes->Args({1, 1, 4096, 8, 64})->Args({16, 1, 1024, 8, 64})->Args({1, 1, 65536, 1, 64});
      }
}

template <class T>
const T& named(const std::vector<std::pair<std::string, T>>& all, const std::string& name) {
  for (const auto& [key, value] : all)
    if (key == name) return value;
  std::cerr << "attention_benchmark: unknown name '" << name << "'\n";
  std::exit(2);
}

/// The first line answers the floating-point operations of a call.
int serve(char** words) {
  const std::string pass = words[2];
  std::int64_t n[5];
  for (int i = 0; i < 5; ++i) n[i] = std::atoll(words[3 + i]);
  Call call(named(dtypes, words[0]), named(cases(), words[1]), pass == "forward_backward", n[0], n[1], n[2], n[3],
            n[4]);
  std::printf("%.6e\n", call.operations());
  std::fflush(stdout);
  return serve_lines(
      [&] {
        call.run();
        synchronize(device);
      },
      [] { return std::string(); });
}

}  // namespace

int main(int count, char** arguments) {
  device = take_device(count, arguments);
  if (count == 10 && std::string(arguments[1]) == "--serve") return serve(arguments + 2);
  register_all();
  return run_benchmarks(count, arguments);
}
