// The same work many times over on a GPU that is busy with something else: the same bits each time.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "allocator/caching_allocator.h"
#include "kernels/attention.h"
#include "kernels/cpu/workspace.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"

namespace poolgrad::kernels {
namespace {

constexpr Device gpu{DeviceType::cuda, 0};

/// A stream of the driver's own, for as long as it lives.
class OwnStream {
 public:
  OwnStream() {
    if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess) stream_ = nullptr;
  }
  ~OwnStream() {
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  bool works() const { return stream_ != nullptr; }
  operator Stream() const { return {gpu, reinterpret_cast<std::uint64_t>(stream_)}; }

 private:
  cudaStream_t stream_ = nullptr;
};

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
  cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream.id));
  return found;
}

/// Work that nobody waits for, from the same pool.
void contend(Stream stream, std::int64_t count) {
  Workspace<float> x(stream, "contention", count), y(stream, "contention", count);
  fill(stream, vector_of(x.data(), count), 1);
  for (int round = 0; round < 8; ++round)
    binary(stream, BinaryOp::add, vector_of(y.data(), count), vector_of(x.data(), count), vector_of(x.data(), count));
}

TEST(Stress, TheSameBits250TimesUnderContention) {
  const OwnStream first, second;
  ASSERT_TRUE(first.works() && second.works());
  const std::int64_t count = (std::int64_t{1} << 18) + 3;
  const std::vector<float> expected = work(first, count);
  for (int repeat = 0; repeat < 250; ++repeat) {
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
  void append_to(std::vector<std::uint16_t>& all, Stream stream) const {
    std::vector<std::uint16_t> own(static_cast<std::size_t>(rows_ * 256));
    copy(stream, View{own.data(), DType::bf16, 1, {rows_ * 256}, {1}},
         View{memory_.data(), DType::bf16, 1, {rows_ * 256}, {1}});
    cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream.id));
    all.insert(all.end(), own.begin(), own.end());
  }

 private:
  std::int64_t rows_;
  Workspace<std::uint16_t> memory_;
};

/// Causal attention and its gradients, as the host sees them then.
std::vector<std::uint16_t> attention(Stream stream, std::int64_t queries, std::int64_t keys) {
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
  std::vector<std::uint16_t> found;
  for (const Rows* rows : {&out, &dq, &dk, &dv}) rows->append_to(found, stream);
  return found;
}

void expect_same_attention(std::int64_t queries, std::int64_t keys) {
  const OwnStream first, second;
  ASSERT_TRUE(first.works() && second.works());
  const std::vector<std::uint16_t> expected = attention(first, queries, keys);
  for (int repeat = 0; repeat < 250; ++repeat) {
    contend(second, 300000 + 1000 * (repeat % 7));
    ASSERT_EQ(attention(repeat % 2 ? first : second, queries, keys) == expected, true) << "repetition " << repeat;
  }
}

TEST(Stress, TensorCoresAndTheirAsynchronousCopiesHaveTheSameBits250Times) {
  allow_mma(true);
  expect_same_attention(500, 700);
  allow_mma(false);
}

TEST(Stress, PartsOfTheKeysHaveTheSameBits250Times) { expect_same_attention(1, 5000); }

}  // namespace
}  // namespace poolgrad::kernels
