// The same work many times over on a GPU that is busy with something else: the same bits each time.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "allocator/caching_allocator.h"
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

}  // namespace
}  // namespace poolgrad::kernels
