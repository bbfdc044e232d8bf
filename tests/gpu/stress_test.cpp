// Repeats work on a GPU that also runs other work: each repetition gives the same bits, equal to those of the CPU. The
// emulated device repeats less.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/memory/cuda_memory.h"
#include "kernels/attention.h"
#include "kernels/cpu/workspace.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"
#include "tests/gpu/own_stream.h"
#include "tests/mma_allowed.h"

namespace poolgrad::kernels {
namespace {

using testing_support::OwnStream;

constexpr Device gpu{DeviceType::cuda, 0};
constexpr std::int64_t queries_of_tiles = POOLGRAD_STRESS_ROWS;

CudaDriver& driver() {
  static const std::unique_ptr<CudaDriver> driver = make_cuda_driver(gpu.index);
  return *driver;
}

void wait_for(Stream stream) {
  if (stream.device.is_cuda()) driver().stream_synchronize(stream.id);
}

/// ||found - expected|| / ||expected||
template <class T, class Value>
double relative_error(const std::vector<T>& found, const std::vector<T>& expected, const Value& value_of) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(value_of(found[i]) - value_of(expected[i]), 2);
    whole += std::pow(value_of(expected[i]), 2);
  }
  return std::sqrt(difference / whole);
}

View vector_of(float* data, std::int64_t count) { return {data, DType::f32, 1, {count}, {1}}; }

/// Random numbers through a chain of kernels with temporaries in between, as the host sees them then.
std::vector<float> work(Stream stream, std::int64_t count) {
  const RandomKey key{7, 11, 0};
  Workspace<float> x(stream, "stress", count);
  normal(stream, key, vector_of(x.data(), count), 0, 1);
  for (int round = 0; round < 4; ++round) {
    Workspace<float> y(stream, "stress", count), z(stream, "stress", count);
    unary(stream, UnaryOp::gelu, vector_of(y.data(), count), vector_of(x.data(), count));
    dropout(stream, {7, 12, static_cast<std::uint64_t>(count * round)}, vector_of(z.data(), count),
            vector_of(y.data(), count), 0.25);
    axpby(stream, vector_of(x.data(), count), 0.5, vector_of(x.data(), count), 1.5, vector_of(z.data(), count));
  }
  std::vector<float> found(static_cast<std::size_t>(count));
  copy(stream, vector_of(found.data(), count), vector_of(x.data(), count));
  wait_for(stream);
  return found;
}

/// Queued work without a wait, from the same pool.
void contend(Stream stream, std::int64_t count) {
  Workspace<float> x(stream, "contention", count), y(stream, "contention", count);
  fill(stream, vector_of(x.data(), count), 1);
  for (int round = 0; round < 8; ++round)
    binary(stream, BinaryOp::add, vector_of(y.data(), count), vector_of(x.data(), count), vector_of(x.data(), count));
}

TEST(Stress, AnEventOrdersWorkOnTwoStreams) {
  const OwnStream first, second;
  CachingAllocator& pool = allocator_for(gpu);
  const std::int64_t count = (std::int64_t{1} << 18) + 3;
  for (int repeat = 0; repeat < POOLGRAD_STRESS_REPEATS; ++repeat) {
    Workspace<float> x(first, "stress", count), y(first, "stress", count);
    fill(first, vector_of(x.data(), count), repeat);
    unary(first, UnaryOp::affine, vector_of(y.data(), count), vector_of(x.data(), count), 2, 0);
    pool.order(second, first);
    unary(second, UnaryOp::affine, vector_of(y.data(), count), vector_of(y.data(), count), 1, 1);
    pool.order(first, second);
    unary(first, UnaryOp::affine, vector_of(y.data(), count), vector_of(y.data(), count), 3, 0);
    std::vector<float> found(static_cast<std::size_t>(count));
    copy(first, vector_of(found.data(), count), vector_of(y.data(), count));
    wait_for(first);
    ASSERT_EQ(found, std::vector<float>(found.size(), 6.0f * static_cast<float>(repeat) + 3)) << repeat;
  }
}

TEST(Stress, AChainOfKernelsHasTheSameBitsUnderContention) {
  const OwnStream first, second;
  const std::int64_t count = (std::int64_t{1} << 18) + 3;
  const std::vector<float> expected = work(first, count);
  // Of the four rounds' results, only gelu is not rounded exactly: it may be 8 units in the last place off.
  EXPECT_LT(relative_error(expected, work(Stream{}, count), [](float x) { return double{x}; }), 4 * 8 * 0x1p-24);
  for (int repeat = 0; repeat < POOLGRAD_STRESS_REPEATS; ++repeat) {
    contend(second, count + 1000 * (repeat % 7));
    const std::vector<float> found = work(repeat % 2 ? first : second, count);
    ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << "repetition " << repeat;
  }
}

/// bf16 (1, rows, 4, 64) in memory of the pool.
class Rows {
 public:
  Rows(Stream stream, std::int64_t rows) : rows_(rows), memory_(stream, "stress", rows * 256) {}
  Rows(Stream stream, std::int64_t rows, std::uint64_t seed) : Rows(stream, rows) {
    normal(stream, {seed, 13, 0}, *this, 0, 1);
  }
  operator View() const { return {memory_.data(), DType::bf16, 4, {1, rows_, 4, 64}, {rows_ * 256, 256, 64, 1}}; }
  std::vector<std::uint16_t> fetch(Stream stream) const {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(rows_ * 256));
    copy(stream, View{bits.data(), DType::bf16, 1, {rows_ * 256}, {1}},
         View{memory_.data(), DType::bf16, 1, {rows_ * 256}, {1}});
    wait_for(stream);
    return bits;
  }

 private:
  std::int64_t rows_;
  Workspace<std::uint16_t> memory_;
};

/// Causal attention and its gradients, as the host sees them then.
std::vector<std::vector<std::uint16_t>> attention(Stream stream, std::int64_t queries, std::int64_t keys) {
  const Rows q(stream, queries, 1), k(stream, keys, 2), v(stream, keys, 3), grad(stream, queries, 4),
      out(stream, queries), dq(stream, queries), dk(stream, keys), dv(stream, keys);
  const Workspace<float> numbers(stream, "stress", 8 * queries);
  const View lse{numbers.data(), DType::f32, 3, {1, 4, queries}, {4 * queries, queries, 1}};
  View delta = lse;
  delta.data = numbers.data() + 4 * queries;
  AttentionSchedule schedule;
  schedule.queries = PositionMap::contiguous(queries, keys - queries);
  schedule.keys = PositionMap::contiguous(keys);
  schedule.heads = 4;
  schedule.right = 0;
  AttentionScores scores;
  scores.scale = 0.125;
  AttentionGradients gradients;
  gradients.dq = dq, gradients.dk = dk, gradients.dv = dv;
  attention_forward(stream, schedule, scores, q, k, v, out, lse);
  attention_delta(stream, out, grad, {}, delta);
  attention_backward(stream, schedule, scores, q, k, v, lse, delta, grad, gradients);
  return {out.fetch(stream), dq.fetch(stream), dk.fetch(stream), dv.fetch(stream)};
}

void expect_same_attention(std::int64_t queries, std::int64_t keys) {
  const OwnStream first, second;
  const std::vector<std::vector<std::uint16_t>> expected = attention(first, queries, keys),
                                                on_cpu = attention(Stream{}, queries, keys);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(
        relative_error(expected[i], on_cpu[i],
                       [](std::uint16_t bits) { return double{std::bit_cast<float>(std::uint32_t{bits} << 16)}; }),
        1e-2)
        << "result " << i;
  for (int repeat = 0; repeat < POOLGRAD_STRESS_REPEATS; ++repeat) {
    contend(second, 300000 + 1000 * (repeat % 7));
    ASSERT_EQ(attention(repeat % 2 ? first : second, queries, keys) == expected, true) << "repetition " << repeat;
  }
}

TEST(Stress, TensorCoresAndTheirAsynchronousCopiesHaveTheSameBits) {
  const MmaAllowed allowed;
  expect_same_attention(queries_of_tiles, queries_of_tiles + 200);
}

TEST(Stress, TilesHaveTheSameBits) {
  const MmaAllowed allowed(false);
  expect_same_attention(queries_of_tiles, queries_of_tiles + 200);
}

TEST(Stress, KeyPartsHaveTheSameBits) { expect_same_attention(1, 10 * queries_of_tiles); }

}  // namespace
}  // namespace poolgrad::kernels
