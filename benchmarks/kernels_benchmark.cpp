// Elementwise, row, indexing and optimizer kernels at the sizes of a training step, relative to memory bandwidth.
// `bytes_per_second` counts bytes read plus written; compare it with the benchmark Copy of the same size. Run with
// --benchmark_repetitions=5 and read the medians; POOLGRAD_THREADS sets the threads.
//
// --device=cuda:0 runs on a GPU with 64 and 256 MiB an array. There, `of_copy` is the bandwidth divided by that of the
// driver's copies between two such arrays. Sets of operands take turns, so many that the cache cannot hold them, for
// both. Operators without a GPU kernel report an error. POOLGRAD_BENCHMARK_SMALL=1: tiny sizes.
#include <benchmark/benchmark.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "benchmarks/driver_copy.h"
#include "benchmarks/support.h"
#include "kernels/cpu/workspace.h"
#include "kernels/elementwise.h"
#include "kernels/indexing.h"
#include "kernels/optimizer.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

namespace poolgrad::kernels {
namespace {

Stream on{cpu};  // --device

/// `count` arrays of (rows, columns) in f32, random in [-2, 2).
class Arrays {
 public:
  Arrays(std::int64_t rows, std::int64_t columns, int count)
      : rows_(rows),
        columns_(columns),
        data_(std::make_unique<Workspace<float>>(on, "benchmark", count * rows * columns)) {
    for (int i = 0; i < count; ++i) uniform(on, {1, static_cast<std::uint64_t>(i), 0}, (*this)[i], -2, 2);
  }
  View operator[](int i) {
    return {data_->data() + i * rows_ * columns_, DType::f32, 2, {rows_, columns_}, {columns_, 1}};
  }
  /// The first row, or the first column as a vector of `n` elements.
  View vector(int i, std::int64_t n) { return {(*this)[i].data, DType::f32, 1, {n}, {1}}; }

 private:
  std::int64_t rows_, columns_;
  std::unique_ptr<Workspace<float>> data_;
};

/// Returns bytes a second, read plus written, of the driver's copies between two arrays of that size; 0 without such a
/// copy.
double copy_ceiling(std::int64_t elements) {
  if (!on.device.is_cuda() || !has_driver_copy()) return 0;
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  const int sets = sets_of_operands(on.device, 2 * static_cast<std::int64_t>(bytes));
  Arrays a(1, elements, 2 * sets);
  std::vector<double> seconds;
  for (int round = 0; round < 21; ++round)
    seconds.push_back(seconds_of([&] {
      for (int i = 0; i < calls_at_once(on.device); ++i)
        driver_copy(a[2 * (i % sets)].data, a[2 * (i % sets) + 1].data, bytes);
      poolgrad::synchronize(on.device);
    }));
  return calls_at_once(on.device) * 2 * static_cast<double>(bytes) / median(seconds);
}

/// Registers a benchmark. `prepare(rows, columns)` makes a set of operands and returns the timed call, which reads and
/// writes `arrays` arrays of that shape.
template <class Prepare>
void add(const std::string& name, int arrays, Prepare prepare) {
  auto* benchmark = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    const std::int64_t elements = state.range(0) * state.range(1);
    const double ceiling = copy_ceiling(elements);
    double seconds = 0;
    try {
      std::vector<decltype(prepare(1, 1))> calls;
      for (int set = 0; set < sets_of_operands(on.device, arrays * 4 * elements); ++set)
        calls.push_back(prepare(state.range(0), state.range(1)));
      std::size_t turn = 0;
      seconds = time_calls(state, on.device, [&] { calls[turn++ % calls.size()](); });
    } catch (const Error& error) {
      return state.SkipWithError(error.what());
    }
    const std::int64_t bytes = state.iterations() * arrays * 4 * elements;
    state.SetBytesProcessed(bytes);
    if (ceiling > 0) state.counters["of_copy"] = static_cast<double>(bytes) / seconds / ceiling;
  });
  if (small_sizes())
    for (const std::int64_t rows : {8, 32}) benchmark->Args({rows, 64});
  else if (on.device.is_cpu())
    for (const std::int64_t columns : {128, 256, 1024}) benchmark->Args({4096, columns});
  else
    for (const std::int64_t rows : {4096, 16384}) benchmark->Args({rows, 4096});
  benchmark->Unit(benchmark::kMicrosecond)->UseRealTime();
}

/// Registers a benchmark whose only operands are `count` such arrays.
template <class Call>
void add(const std::string& name, int count, int arrays, Call call) {
  add(name, arrays, [=](std::int64_t rows, std::int64_t columns) {
    return [call, a = Arrays(rows, columns, count)]() mutable { call(a); };
  });
}

/// The last weights are the biases; the statistics are mean and 1 / deviation.
struct RowOperands {
  RowOperands(std::int64_t rows, std::int64_t columns, int count)
      : a(rows, columns, count),
        weights(columns, 3, 1),
        statistics(rows, 2, 1),
        weight(weights.vector(0, columns)),
        dweight(weight),
        dbias(weight),
        mean(statistics.vector(0, rows)) {
    dweight.data = weight.as<float>() + columns;
    dbias.data = weight.as<float>() + 2 * columns;
  }
  Arrays a, weights, statistics;
  View weight, dweight, dbias, mean;
};
template <class Call>
void add_rows(const char* name, int count, Call call) {
  add(name, count, [=](std::int64_t rows, std::int64_t columns) {
    return [call, o = RowOperands(rows, columns, count)]() mutable { call(o); };
  });
}

/// Targets or token indices, skewed as in text.
class Tokens {
 public:
  Tokens(std::int64_t n, std::int64_t limit) : values_(static_cast<std::size_t>(n)) {
    std::mt19937_64 random(1);
    std::geometric_distribution<std::int64_t> geometric(0.05);
    for (auto& token : values_) token = geometric(random) % limit;
    View host = view();
    host.data = values_.data();
    copy(on, view(), host);
  }
  View view() { return {memory_->data(), DType::i64, 1, {static_cast<std::int64_t>(values_.size())}, {1}}; }

 private:
  std::vector<std::int64_t> values_;
  std::unique_ptr<Workspace<std::int64_t>> memory_ =
      std::make_unique<Workspace<std::int64_t>>(on, "benchmark", static_cast<std::int64_t>(values_.size()));
};

void add_unary(const std::string& name, UnaryOp op, bool backward) {
  add("Unary/" + name, 2, 2, [=](Arrays& a) { unary(on, op, a[0], a[1], 2, 1); });
  if (backward)
    add("UnaryBackward/" + name, 3, 3, [=](Arrays& a) { unary_backward(on, op, a[0], a[1], a[2], a[2], 2, 1); });
}

void add_elementwise() {
  add("Copy", 2, 2, [](Arrays& a) { copy(on, a[0], a[1]); });
  add("Add", 3, 3, [](Arrays& a) { binary(on, BinaryOp::add, a[0], a[1], a[2]); });
  add("AddBias", 3, 2, [](Arrays& a) {
    View bias = a[2];
    bias.strides[0] = 0;
    binary(on, BinaryOp::add, a[0], a[1], bias);
  });
  add_unary("gelu_tanh", UnaryOp::gelu_tanh, true);
  add_unary("gelu", UnaryOp::gelu, true);
  add_unary("silu", UnaryOp::silu, false);
  add_unary("tanh", UnaryOp::tanh, false);
  add_unary("log", UnaryOp::log, false);
  add("SiluMul", 3, 3, [](Arrays& a) { silu_mul(on, a[0], a[1], a[2]); });
  add("SiluMulBackward", 5, 5, [](Arrays& a) { silu_mul_backward(on, a[0], a[1], a[2], a[3], a[4]); });
  add("CastToBf16", 2, 2, [](Arrays& a) {
    View half = a[0];
    half.dtype = DType::bf16;
    copy(on, half, a[1]);
  });
  add("Transpose", 2, 2, [](Arrays& a) {
    const View x = a[1];
    const View turned{x.data, DType::f32, 2, {x.shape[1], x.shape[0]}, {1, x.shape[1]}};
    copy(on, {a[0].data, DType::f32, 2, {x.shape[1], x.shape[0]}, {x.shape[0], 1}}, turned);
  });
  add("Dropout", 2, 2, [](Arrays& a) { dropout(on, {1, 2, 3}, a[0], a[1], 0.1); });
  add("Normal", 1, 1, [](Arrays& a) { normal(on, {1, 2, 3}, a[0], 0, 1); });
}

void add_row_kernels() {
  add("Softmax", 2, 2, [](Arrays& a) { softmax(on, a[0], a[1]); });
  add("SoftmaxBackward", 3, 3, [](Arrays& a) { softmax_backward(on, a[0], a[1], a[2]); });
  add_rows("LayerNorm", 2,
           [](RowOperands& o) { layer_norm(on, o.a[0], o.mean, o.mean, o.a[1], o.weight, o.weight, 1e-5); });
  add_rows("LayerNormBackward", 3, [](RowOperands& o) {
    layer_norm_backward(on, o.a[0], o.dweight, o.dbias, o.a[1], o.a[2], o.mean, o.mean, o.weight);
  });
  add_rows("RmsNorm", 2, [](RowOperands& o) { rms_norm(on, o.a[0], o.mean, o.a[1], o.weight, 1e-5); });
  add_rows("RmsNormBackward", 3,
           [](RowOperands& o) { rms_norm_backward(on, o.a[0], o.dweight, o.a[1], o.a[2], o.mean, o.weight); });
  add("CrossEntropy", 1, [](std::int64_t rows, std::int64_t columns) {
    return [=, a = Arrays(rows, columns, 1), s = Arrays(rows, 2, 1), target = Tokens(rows, columns)]() mutable {
      View lse = s.vector(0, rows);
      lse.data = lse.as<float>() + rows;
      cross_entropy(on, s.vector(0, rows), lse, a[0], target.view(), -1, 0);
    };
  });
  add("CrossEntropyBackward", 2, [](std::int64_t rows, std::int64_t columns) {
    return [=, a = Arrays(rows, columns, 2), s = Arrays(rows, 2, 1), target = Tokens(rows, columns)]() mutable {
      const View lse = s.vector(0, rows);
      cross_entropy_backward(on, a[0], lse, a[1], lse, target.view(), -1, 0);
    };
  });
  add("Rope", 2, 2, [](Arrays& a) {  // 32 per head
    const std::int64_t rows = a[0].shape[0], columns = a[0].shape[1];
    View x{a[1].data, DType::f32, 4, {1, rows, columns / 32, 32}, {0, columns, 32, 1}}, out = x;
    out.data = a[0].data;
    rope(on, out, x, 0, 10000, false);
  });
}

void add_reductions() {
  add_rows("SumAll", 1, [](RowOperands& o) {
    reduce(on, ReduceOp::sum, {o.mean.data, DType::f32, 2, {1, 1}, {1, 1}}, o.a[0]);
  });
  add_rows("SumRows", 1, [](RowOperands& o) { sum_rows(on, o.weight, o.a[0]); });
  add_rows("SumColumns", 1, [](RowOperands& o) {
    View out = o.mean;
    out.rank = 2, out.shape[1] = out.strides[1] = 1;
    reduce(on, ReduceOp::sum, out, o.a[0]);
  });
  add_rows("SumOfSquares", 1, [](RowOperands& o) {
    add_sum_of_squares(on, {o.statistics[0].data, DType::f64, 1, {1}, {1}}, o.a[0]);
  });
}

void add_training() {
  const auto lookup = [](bool backward) {
    return [=](std::int64_t rows, std::int64_t columns) {
      return [=, a = Arrays(rows, columns, 1), table = Arrays(256, columns, 1), token = Tokens(rows, 256)]() mutable {
        if (backward)
          embedding_backward(on, table[0], a[0], token.view(), -1);
        else
          embedding(on, a[0], table[0], token.view());
      };
    };
  };
  add("Embedding", 1, lookup(false));
  add("EmbeddingBackward", 1, lookup(true));
  add("AdamWStep", 7, [](std::int64_t rows, std::int64_t columns) {
    Arrays a(rows, columns, 4);
    fill(on, a[3], 1);
    return [a = std::move(a)]() mutable { adamw(on, {}, std::array{UpdateOperands{a[0], a[1], {a[2], a[3]}}}); };
  });
}

void add_all() {
  add_elementwise();
  add_row_kernels();
  add_reductions();
  add_training();
}

}  // namespace
}  // namespace poolgrad::kernels

int main(int argc, char** argv) {
  poolgrad::kernels::on.device = poolgrad::take_device(argc, argv);
  poolgrad::kernels::add_all();
  return poolgrad::run_benchmarks(argc, argv);
}
