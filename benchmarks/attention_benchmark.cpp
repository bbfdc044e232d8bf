// attend() and other layers of long context: the forward pass, and forward and backward together; the plans of rings;
// decoding.
//
//   attention_benchmark                                           as Google Benchmark shows it
//   attention_benchmark --serve DTYPE PATTERN PASS B NQ NK H D    waits for lines; answers each with the milliseconds
//                                                                 of one call
//   attention_benchmark --save FILE DTYPE PATTERN B NQ NK H D     writes operands, result "out" and gradients "d NAME"
//                                                                 of one call to a safetensors file
//
// `FLOPS` counts the pairs that the pattern admits, with their multiplicity: 4 D for the forward pass and 10 D for the
// backward pass, whatever the kernels recompute. Run with --benchmark_repetitions=5 and read the medians.
// --device=cuda:0 measures a GPU; POOLGRAD_BENCHMARK_SMALL=1: a tiny size. benchmarks/peers/sdpa.py and layers.py use
// the second form to alternate with PyTorch, and layers.py the third to compare results.
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "attention/attend.h"
#include "attention/modules/native_sparse.h"
#include "attention/ring/plan.h"
#include "autograd/engine/engine.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/recurrence.h"
#include "benchmarks/support.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"

namespace {

using namespace poolgrad;
using attention::Pattern;

Device device;  // --device

const std::vector<std::pair<std::string, DType>> dtypes = {
    {"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}, {"f64", DType::f64}};

/// mixed: five layers of a window and one of the pattern, each with the result of the last one as its queries.
/// selection: AdaptiveBlockSparseAttention, nsa: NativeSparseAttention whose heads share keys; their numbers of pairs
/// are those of the pattern.
enum class Kind { attend, mixed, selection, nsa, delta, gla, convolution };

struct Case {
  Pattern pattern = Pattern::causal();
  double dropout = 0.0;
  Kind kind = Kind::attend;
};

constexpr std::int64_t block = 64, selected = 16, window = 512;

const std::vector<std::pair<std::string, Case>>& cases() {
  static const Pattern dilated = Pattern::dilated({512, 1024, 2048}, {1, 2, 4}),
                       random = Pattern::random_blocks(128, 0.25, 1);
  std::vector<std::int64_t> near(selected), apart(selected);
  std::iota(near.begin(), near.end(), 1 - selected);
  for (std::size_t i = 0; i < apart.size(); ++i) apart[i] = 4 * near[i];
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
      {"per_head", {Pattern::block_offsets(block, std::vector{near, apart}) & Pattern::causal()}},
      {"mixed", {.kind = Kind::mixed}},
      {"selection", {Pattern::block_offsets(block, near) & Pattern::causal(), 0.0, Kind::selection}},
      {"nsa", {Pattern::block_offsets(block, near) & Pattern::causal(), 0.0, Kind::nsa}},
      {"delta", {.kind = Kind::delta}},
      {"gla", {.kind = Kind::gla}},
      {"convolution", {.kind = Kind::convolution}},
  };
  return all;
}

/// One call on operands of its own: forward without a graph, or forward and backward.
class Call {
 public:
  Call(DType dtype, const Case& of, bool backward, std::int64_t batch, std::int64_t queries, std::int64_t keys,
       std::int64_t heads, std::int64_t depth)
      : case_(of), backward_(backward) {
    const TensorOptions wide{compute_dtype(dtype), device};
    gradient_ = randn({batch, queries, heads, depth}, {dtype, device});
    if (of.kind == Kind::convolution) {
      gradient_ = randn({batch, queries, 3 * heads * depth}, {dtype, device});
      add("x", randn(gradient_.shape(), gradient_.options()));
      add("weight", randn({gradient_.size(2), 4}, gradient_.options()));
      operations_ = (backward ? 24.0 : 8.0) * static_cast<double>(gradient_.numel());
      return;
    }
    const auto pairs = [&](const Pattern& pattern) {
      double sum = 0;
      for (const auto& pass : pattern
                                  .compile(heads, kernels::PositionMap::contiguous(queries, keys - queries),
                                           kernels::PositionMap::contiguous(keys))
                                  .passes)
        sum += pass.count_pairs();
      return sum;
    };
    const double each = (backward ? 14.0 : 4.0) * static_cast<double>(batch * depth);
    if (of.kind == Kind::nsa) {
      const std::int64_t width = heads * depth;
      gradient_ = randn({batch, queries, width}, gradient_.options());
      sparse_ = std::make_unique<attention::NativeSparseAttention>(
          width, heads, attention::NativeSparseOptions{.block = block, .count = selected, .window = window},
          attention::MultiheadOptions{.kv_heads = 1, .bias = false, .layer_norm = false, .post_norm = false},
          nn::ParameterOptions{.dtype = wide.dtype, .device = device});
      add("x", randn(gradient_.shape(), gradient_.options()));
      for (const auto& [name, parameter] : sparse_->named_parameters()) operands_.emplace_back(name, parameter);
      operations_ = each * (pairs(of.pattern) + pairs(local()));
      return;
    }
    const bool recurrent = of.kind == Kind::delta || of.kind == Kind::gla;
    add("q", randn(gradient_.shape(), gradient_.options()));
    for (const char* name : {"k", "v"}) {
      const Tensor x = randn({batch, keys, heads, depth}, gradient_.options());
      add(name, recurrent && *name == 'k' ? x * 0.125 : x);
    }
    if (recurrent) {  // products of D x D a position: forward 7 (4 without delta), backward 20 (10)
      add("beta", rand({batch, keys, heads}, 0.0, 1.0, wide));
      add("gate", rand({batch, keys, heads}, -0.1, 0.0, wide));
      const double products = of.kind == Kind::delta ? (backward ? 27.0 : 7.0) : (backward ? 14.0 : 4.0);
      operations_ = products * 2.0 * static_cast<double>(batch * keys * heads * depth * depth);
      return;
    }
    if (of.kind == Kind::selection) {
      selection_.emplace(depth, attention::BlockSelectionOptions{.block_size = block, .selected = selected},
                         attention::CoreOptions{}, nn::ParameterOptions{.dtype = wide.dtype, .device = device});
      for (const auto& [name, parameter] : selection_->named_parameters()) operands_.emplace_back(name, parameter);
    }
    operations_ = each * (pairs(of.pattern) + (of.kind == Kind::mixed ? 5 * pairs(local()) : 0.0));
  }

  void run() {
    if (backward_) {
      gradients();
    } else {
      const NoGradGuard guard;
      forward();
    }
  }
  double operations() const { return operations_; }

  void save(const std::string& path) {
    SafetensorsFile file;
    for (const auto& [name, x] : operands_) file.tensors.emplace_back(name, x.detach());
    file.tensors.emplace_back("gradient", gradient_);
    file.tensors.emplace_back("out", forward().detach());
    const std::vector<Tensor> found = gradients();
    for (std::size_t i = 0; i < found.size(); ++i) file.tensors.emplace_back("d " + operands_[i].first, found[i]);
    save_safetensors(path, file);
  }

 private:
  static Pattern local() { return Pattern::causal() & Pattern::window(window - 1, 0); }

  void add(const char* name, const Tensor& x) { operands_.emplace_back(name, x.detach().set_requires_grad(backward_)); }

  Tensor forward() {
    const auto in = [&](std::size_t i) { return operands_[i].second; };
    if (case_.kind == Kind::convolution) return short_convolution(in(0), in(1));
    if (case_.kind == Kind::delta || case_.kind == Kind::gla)
      return gated_delta_rule(in(0), in(1), in(2), in(3), in(4), {}, {.delta = case_.kind == Kind::delta}).out;
    if (sparse_) return sparse_->forward(in(0));
    if (selection_) return selection_->forward(in(0), in(1), in(2), {.causal = true});
    Tensor q = in(0);
    for (int layer = 0; case_.kind == Kind::mixed && layer < 5; ++layer)
      q = attention::attend(q, in(1), in(2), local()).out;
    return attention::attend(q, in(1), in(2), case_.pattern, {.dropout = case_.dropout}).out;
  }
  std::vector<Tensor> gradients() {
    std::vector<Tensor> wanted;
    for (const auto& [name, x] : operands_) wanted.push_back(x);
    return grad({forward()}, wanted, {gradient_});
  }

  const Case& case_;
  bool backward_;
  std::vector<std::pair<std::string, Tensor>> operands_;
  std::optional<attention::AdaptiveBlockSparseAttention> selection_;
  std::unique_ptr<attention::NativeSparseAttention> sparse_;
  Tensor gradient_;
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
      if (of.dropout == 0 && of.kind == Kind::attend)
        benchmark::RegisterBenchmark(("RingPlan/" + name + "/" + attention::to_string(layout)).c_str(), run)
            ->ArgName("ranks")
            ->Arg(small_sizes() ? 8 : 512)
            ->Unit(benchmark::kMillisecond);
    }
}

/// One token after `positions` others through a layer of 4 heads of 64 in f32. `state_bytes` are those of its state.
void register_decoding() {
  using attention::MultiheadAttention;
  using attention::MultiheadOptions;
  static constexpr std::int64_t heads = 4, depth = 64, width = heads * depth, warm_up = 600;
  const auto add = [](const char* name, const auto& make) {
    const auto run = [make](benchmark::State& state) {
      const NoGradGuard guard;
      const std::int64_t length = state.range(0);
      const std::unique_ptr<attention::MultiheadShell> layer = make();
      nn::SequenceState seen;
      seen.length = length - warm_up;
      const auto rows = [](std::int64_t count) { return randn({1, count, heads, depth}, {DType::f32, device}); };
      const std::int64_t blocks = seen.length / block;
      seen.tensors = {rows(seen.length), rows(seen.length), rows(blocks), rows(blocks)};
      const Tensor token = randn({1, 1, width}, {DType::f32, device});
      for (std::int64_t n = 0; n < warm_up; ++n) layer->forward(token, &seen);  // buffers have their size
      const std::int64_t reached = seen.length;
      const std::vector<std::int64_t> held = seen.positions;
      time_calls(state, device, [&] {
        seen.length = reached, seen.positions = held;  // every call writes the same position
        layer->forward(token, &seen);
      });
      double bytes = 0;
      for (const Tensor& tensor : seen.tensors) bytes += static_cast<double>(bytes_of(tensor));
      state.counters["state_bytes"] = bytes;
    };
    auto* lengths = benchmark::RegisterBenchmark((std::string("Decode/f32/") + name).c_str(), run)
                        ->ArgName("positions")
                        ->UseRealTime()
                        ->Unit(benchmark::kMicrosecond);
    for (const std::int64_t length : {1024, 4096, 16384, 65536})
      if (length == 1024 || !small_sizes()) lengths->Arg(length);
  };
  static const MultiheadOptions options{.layer_norm = false, .post_norm = false, .rope = RopeOptions(), .causal = true};
  const auto by_pattern = [](const Pattern& pattern) {
    return [pattern] {
      return std::make_unique<MultiheadAttention>(width, heads, options, nn::ParameterOptions{.device = device},
                                                  pattern);
    };
  };
  add("causal", by_pattern(Pattern::causal()));
  add("window_256", by_pattern(Pattern::window(255, 0)));
  add("sinks_window_256", by_pattern((Pattern::window(255, 0) | Pattern::sink_tokens(4)) & Pattern::causal()));
  add("nsa", [] {
    return std::make_unique<attention::NativeSparseAttention>(width, heads, attention::NativeSparseOptions(), options,
                                                              nn::ParameterOptions{.device = device});
  });
}

void register_all() {
  if (!device.is_cuda()) {
    register_plans();
    register_decoding();
  }
  for (const auto& [dtype_name, dtype] : dtypes)
    for (const auto& [case_name, of] : cases())
      for (const bool backward : {false, true}) {
        if (dtype == DType::f64) continue;                          // for --save
        if (device.is_cuda() && of.kind != Kind::attend) continue;  // ./run gpu-check has little time
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

/// The words are the dtype, the pattern, and five sizes from `sizes` on.
Call call_of(char** words, char** sizes, bool backward) {
  std::int64_t n[5];
  for (int i = 0; i < 5; ++i) n[i] = std::atoll(sizes[i]);
  return Call(named(dtypes, words[0]), named(cases(), words[1]), backward, n[0], n[1], n[2], n[3], n[4]);
}

/// The first line answers the floating-point operations of a call.
int serve(char** words) {
  Call call = call_of(words, words + 3, std::string(words[2]) == "forward_backward");
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
  const std::string task = count == 10 ? arguments[1] : "";
  if (task == "--serve") return serve(arguments + 2);
  if (task == "--save") {
    call_of(arguments + 3, arguments + 5, true).save(arguments[2]);
    return 0;
  }
  register_all();
  return run_benchmarks(count, arguments);
}
