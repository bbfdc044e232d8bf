// Elementwise, row, indexing and optimiser kernels at the sizes of a training step, against the machine's memory:
// `bytes_per_second` counts what is read plus written, to be compared with the benchmark Copy of the same size. Run
// with --benchmark_repetitions=5 and read the medians; POOLGRAD_THREADS sets the threads.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/indexing.h"
#include "kernels/optimizer.h"
#include "kernels/parallel.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rows.h"

namespace poolgrad::kernels {
namespace {

/// `count` arrays of (rows, columns) in f32, random in [-2, 2).
class Arrays {
 public:
  Arrays(const benchmark::State& state, int count) : Arrays(state.range(0), state.range(1), count) {}
  Arrays(std::int64_t rows, std::int64_t columns, int count) : rows_(rows), columns_(columns) {
    data_.resize(static_cast<std::size_t>(count * rows * columns));
    for (int i = 0; i < count; ++i) uniform({}, {1, static_cast<std::uint64_t>(i), 0}, (*this)[i], -2, 2);
  }
  View operator[](int i) {
    return {data_.data() + i * rows_ * columns_, DType::f32, 2, {rows_, columns_}, {columns_, 1}};
  }
  /// The first row, or the first column as a vector of `n` elements.
  View vector(int i, std::int64_t n) { return {(*this)[i].data, DType::f32, 1, {n}, {1}}; }

 private:
  std::int64_t rows_, columns_;
  std::vector<float> data_;
};

void count_bytes(benchmark::State& state, int arrays) {
  state.SetBytesProcessed(state.iterations() * arrays * 4 * state.range(0) * state.range(1));
}

void Copy(benchmark::State& state) {
  Arrays a(state, 2);
  for (auto _ : state) copy({}, a[0], a[1]);
  count_bytes(state, 2);
}
void Add(benchmark::State& state) {
  Arrays a(state, 3);
  for (auto _ : state) binary({}, BinaryOp::add, a[0], a[1], a[2]);
  count_bytes(state, 3);
}
void AddBias(benchmark::State& state) {
  Arrays a(state, 3);
  View bias = a[2];
  bias.strides[0] = 0;
  for (auto _ : state) binary({}, BinaryOp::add, a[0], a[1], bias);
  count_bytes(state, 2);
}
void Unary(benchmark::State& state, UnaryOp op) {
  Arrays a(state, 2);
  for (auto _ : state) unary({}, op, a[0], a[1], 2, 1);
  count_bytes(state, 2);
}
void UnaryBackward(benchmark::State& state, UnaryOp op) {
  Arrays a(state, 3);
  for (auto _ : state) unary_backward({}, op, a[0], a[1], a[2], a[2], 2, 1);
  count_bytes(state, 3);
}
void SiluMul(benchmark::State& state) {
  Arrays a(state, 3);
  for (auto _ : state) silu_mul({}, a[0], a[1], a[2]);
  count_bytes(state, 3);
}
void SiluMulBackward(benchmark::State& state) {
  Arrays a(state, 5);
  for (auto _ : state) silu_mul_backward({}, a[0], a[1], a[2], a[3], a[4]);
  count_bytes(state, 5);
}
void CastToBf16(benchmark::State& state) {
  Arrays a(state, 2);
  View half = a[0];
  half.dtype = DType::bf16;
  for (auto _ : state) copy({}, half, a[1]);
  count_bytes(state, 2);
}
void Dropout(benchmark::State& state) {
  Arrays a(state, 2);
  for (auto _ : state) dropout({}, {1, 2, 3}, a[0], a[1], 0.1);
  count_bytes(state, 2);
}
void Normal(benchmark::State& state) {
  Arrays a(state, 1);
  for (auto _ : state) normal({}, {1, 2, 3}, a[0], 0, 1);
  count_bytes(state, 1);
}
void Transpose(benchmark::State& state) {
  Arrays a(state, 2);
  View turned = a[1];
  std::swap(turned.shape[0], turned.shape[1]);
  turned.strides[0] = 1, turned.strides[1] = state.range(1);
  View out = a[0];
  out.shape[0] = turned.shape[0], out.shape[1] = turned.shape[1];
  out.strides[0] = turned.shape[1];
  for (auto _ : state) copy({}, out, turned);
  count_bytes(state, 2);
}

void Softmax(benchmark::State& state) {
  Arrays a(state, 2);
  for (auto _ : state) softmax({}, a[0], a[1]);
  count_bytes(state, 2);
}
void SoftmaxBackward(benchmark::State& state) {
  Arrays a(state, 3);
  for (auto _ : state) softmax_backward({}, a[0], a[1], a[2]);
  count_bytes(state, 3);
}
void LayerNorm(benchmark::State& state) {
  Arrays a(state, 2), w(state.range(1), 2, 1), s(state.range(0), 2, 1);
  View weight = w.vector(0, state.range(1)), mean = s.vector(0, state.range(0));
  for (auto _ : state) layer_norm({}, a[0], mean, mean, a[1], weight, weight, 1e-5);
  count_bytes(state, 2);
}
void LayerNormBackward(benchmark::State& state) {
  Arrays a(state, 3), w(state.range(1), 3, 1), s(state.range(0), 2, 1);
  View weight = w.vector(0, state.range(1)), mean = s.vector(0, state.range(0));
  View dweight = weight, dbias = weight;
  dweight.data = weight.as<float>() + state.range(1);
  dbias.data = weight.as<float>() + 2 * state.range(1);
  for (auto _ : state) layer_norm_backward({}, a[0], dweight, dbias, a[1], a[2], mean, mean, weight);
  count_bytes(state, 3);
}
void RmsNorm(benchmark::State& state) {
  Arrays a(state, 2), w(state.range(1), 2, 1), s(state.range(0), 2, 1);
  for (auto _ : state) rms_norm({}, a[0], s.vector(0, state.range(0)), a[1], w.vector(0, state.range(1)), 1e-5);
  count_bytes(state, 2);
}
void RmsNormBackward(benchmark::State& state) {
  Arrays a(state, 3), w(state.range(1), 2, 1), s(state.range(0), 2, 1);
  View weight = w.vector(0, state.range(1)), dweight = weight;
  dweight.data = weight.as<float>() + state.range(1);
  for (auto _ : state) rms_norm_backward({}, a[0], dweight, a[1], a[2], s.vector(0, state.range(0)), weight);
  count_bytes(state, 3);
}
/// Targets or token indices, skewed as text is.
std::vector<std::int64_t> tokens(std::int64_t n, std::int64_t limit) {
  std::mt19937_64 random(1);
  std::geometric_distribution<std::int64_t> geometric(0.05);
  std::vector<std::int64_t> result(static_cast<std::size_t>(n));
  for (auto& token : result) token = geometric(random) % limit;
  return result;
}
void CrossEntropy(benchmark::State& state) {
  Arrays a(state, 1), s(state.range(0), 2, 1);
  auto target = tokens(state.range(0), state.range(1));
  const View targets{target.data(), DType::i64, 1, {state.range(0)}, {1}};
  View loss = s.vector(0, state.range(0)), lse = loss;
  lse.data = loss.as<float>() + state.range(0);
  for (auto _ : state) cross_entropy({}, loss, lse, a[0], targets, -1, 0);
  count_bytes(state, 1);
}
void CrossEntropyBackward(benchmark::State& state) {
  Arrays a(state, 2), s(state.range(0), 2, 1);
  auto target = tokens(state.range(0), state.range(1));
  const View targets{target.data(), DType::i64, 1, {state.range(0)}, {1}};
  const View lse = s.vector(0, state.range(0));
  for (auto _ : state) cross_entropy_backward({}, a[0], lse, a[1], lse, targets, -1, 0);
  count_bytes(state, 2);
}
void Rope(benchmark::State& state) {  // 32 per head
  Arrays a(state, 2);
  const std::int64_t heads = state.range(1) / 32;
  View x{a[1].data, DType::f32, 4, {1, state.range(0), heads, 32}, {0, state.range(1), 32, 1}}, out = x;
  out.data = a[0].data;
  for (auto _ : state) rope({}, out, x, 0, 10000, false);
  count_bytes(state, 2);
}

void SumAll(benchmark::State& state) {
  Arrays a(state, 1);
  float total;
  for (auto _ : state) reduce({}, ReduceOp::sum, {&total, DType::f32, 2, {1, 1}, {1, 1}}, a[0]);
  count_bytes(state, 1);
}
void SumRows(benchmark::State& state) {
  Arrays a(state, 1), w(state.range(1), 2, 1);
  for (auto _ : state) sum_rows({}, w.vector(0, state.range(1)), a[0]);
  count_bytes(state, 1);
}
void SumColumns(benchmark::State& state) {
  Arrays a(state, 1), s(state.range(0), 2, 1);
  View out = s.vector(0, state.range(0));
  out.rank = 2, out.shape[1] = out.strides[1] = 1;
  for (auto _ : state) reduce({}, ReduceOp::sum, out, a[0]);
  count_bytes(state, 1);
}
void SumOfSquares(benchmark::State& state) {
  Arrays a(state, 1);
  double total = 0;
  for (auto _ : state) add_sum_of_squares({}, {&total, DType::f64, 1, {1}, {1}}, a[0]);
  count_bytes(state, 1);
}
void Embedding(benchmark::State& state) {
  Arrays a(state, 1), table(256, state.range(1), 1);
  auto token = tokens(state.range(0), 256);
  const View index{token.data(), DType::i64, 1, {state.range(0)}, {1}};
  for (auto _ : state) embedding({}, a[0], table[0], index);
  count_bytes(state, 1);
}
void EmbeddingBackward(benchmark::State& state) {
  Arrays a(state, 1), table(256, state.range(1), 1);
  auto token = tokens(state.range(0), 256);
  const View index{token.data(), DType::i64, 1, {state.range(0)}, {1}};
  for (auto _ : state) embedding_backward({}, table[0], a[0], index, -1);
  count_bytes(state, 1);
}
void AdamWStep(benchmark::State& state) {
  Arrays a(state, 4);
  fill({}, a[3], 1);
  for (auto _ : state) adamw({}, {}, a[0], a[1], a[2], a[3]);
  count_bytes(state, 7);
}

void sizes(benchmark::internal::Benchmark* b) {
  for (const std::int64_t columns : {128, 256, 1024}) b->Args({4096, columns});
  b->Unit(benchmark::kMicrosecond)->UseRealTime();
}

BENCHMARK(Copy)->Apply(sizes);
BENCHMARK(Add)->Apply(sizes);
BENCHMARK(AddBias)->Apply(sizes);
BENCHMARK_CAPTURE(Unary, gelu_tanh, UnaryOp::gelu_tanh)->Apply(sizes);
BENCHMARK_CAPTURE(UnaryBackward, gelu_tanh, UnaryOp::gelu_tanh)->Apply(sizes);
BENCHMARK_CAPTURE(Unary, gelu, UnaryOp::gelu)->Apply(sizes);
BENCHMARK_CAPTURE(UnaryBackward, gelu, UnaryOp::gelu)->Apply(sizes);
BENCHMARK_CAPTURE(Unary, silu, UnaryOp::silu)->Apply(sizes);
BENCHMARK_CAPTURE(Unary, tanh, UnaryOp::tanh)->Apply(sizes);
BENCHMARK_CAPTURE(Unary, log, UnaryOp::log)->Apply(sizes);
BENCHMARK(SiluMul)->Apply(sizes);
BENCHMARK(SiluMulBackward)->Apply(sizes);
BENCHMARK(CastToBf16)->Apply(sizes);
BENCHMARK(Transpose)->Apply(sizes);
BENCHMARK(Dropout)->Apply(sizes);
BENCHMARK(Normal)->Apply(sizes);
BENCHMARK(Softmax)->Apply(sizes);
BENCHMARK(SoftmaxBackward)->Apply(sizes);
BENCHMARK(LayerNorm)->Apply(sizes);
BENCHMARK(LayerNormBackward)->Apply(sizes);
BENCHMARK(RmsNorm)->Apply(sizes);
BENCHMARK(RmsNormBackward)->Apply(sizes);
BENCHMARK(CrossEntropy)->Apply(sizes);
BENCHMARK(CrossEntropyBackward)->Apply(sizes);
BENCHMARK(Rope)->Apply(sizes);
BENCHMARK(SumAll)->Apply(sizes);
BENCHMARK(SumRows)->Apply(sizes);
BENCHMARK(SumColumns)->Apply(sizes);
BENCHMARK(SumOfSquares)->Apply(sizes);
BENCHMARK(Embedding)->Apply(sizes);
BENCHMARK(EmbeddingBackward)->Apply(sizes);
BENCHMARK(AdamWStep)->Apply(sizes);

}  // namespace
}  // namespace poolgrad::kernels

BENCHMARK_MAIN();
