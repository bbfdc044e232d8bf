// Block collectives, with equal results on a GPU and on the emulated device.
#include "kernels/cuda/collectives.cuh"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "allocator/error.h"
#include "tests/emulation/order.h"
#include "tests/kernels/cuda/device_array.h"

namespace poolgrad::kernels::cuda {
namespace {

using testing::cuda0;
using testing::DeviceArray;

/// Each block sums its `Threads` consecutive elements.
template <int Threads>
__global__ void sum_blocks(const float* x, float* sums) {
  const float sum = block_reduce<reductions::Sum, Threads>(x[blockIdx.x * Threads + threadIdx.x]);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <int Threads>
void expect_sums() {
  constexpr int blocks = 5;
  std::vector<float> values(blocks * Threads);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> x(values), sums(std::vector<float>(blocks, -1.0f));
  launch("sum", &sum_blocks<Threads>, {{blocks}, {Threads}}, cuda0, x.data(), sums.data());
  const std::vector<float> found = sums.read();
  for (int b = 0; b < blocks; ++b)
    EXPECT_FLOAT_EQ(
        found[static_cast<std::size_t>(b)],
        static_cast<float>(Threads) * (static_cast<float>(b * Threads) + static_cast<float>(Threads - 1) / 2));
}

TEST(CudaBlock, ReducesInAnyOrderOfThreads) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    expect_sums<32>();
    expect_sums<64>();
    expect_sums<1024>();
  }
}

/// The sum of a block's elements less the largest and the smallest. All three reductions use the same shared memory.
__global__ void sum_without_extremes(const float* x, float* out) {
  const float value = x[threadIdx.x];
  const float sum = block_reduce<reductions::Sum, 128>(value);
  const float most = block_reduce<reductions::Maximum, 128>(value),
              least = block_reduce<reductions::Minimum, 128>(value);
  const float again = block_reduce<reductions::Sum, 128>(value);
  for (int repeat = 0; repeat < 3; ++repeat) out[threadIdx.x] = block_reduce<reductions::Sum, 128>(sum - again + 1.0f);
  out[threadIdx.x] = sum - most - least + (again - sum);
}

TEST(CudaBlock, ReductionsMayFollowEachOther) {
  std::vector<float> values(128);
  std::iota(values.begin(), values.end(), 1.0f);
  const DeviceArray<float> x(values), out(std::vector<float>(128, 0.0f));
  launch("extremes", &sum_without_extremes, {{1}, {128}}, cuda0, x.data(), out.data());
  EXPECT_EQ(out.read(), std::vector<float>(128, 128.0f * 129 / 2 - 128 - 1));
}

__global__ void use_collectives(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32, i = static_cast<int>(threadIdx.x);
  out[8 * i + 0] = __shfl_sync(0xffffffffu, lane, 5);
  out[8 * i + 1] = __shfl_xor_sync(0xffffffffu, lane, 3);
  out[8 * i + 2] = __shfl_down_sync(0xffffffffu, lane, 4u);
  out[8 * i + 3] = __shfl_up_sync(0xffffffffu, lane, 4u);
  out[8 * i + 4] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  out[8 * i + 5] = __any_sync(0xffffffffu, lane == 31) ? 1 : 0;
  out[8 * i + 6] = __all_sync(0xffffffffu, lane < 31) ? 1 : 0;
  out[8 * i + 7] = __shfl_down_sync(0xffffffffu, lane, 3u, 8);
}

TEST(CudaBlock, WarpCollectivesFollowThePtxManual) {
  const DeviceArray<int> out(std::vector<int>(64 * 8, -1));
  launch("collectives", &use_collectives, {{1}, {64}}, cuda0, out.data());
  const std::vector<int> found = out.read();
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32;
    const int expected[] = {5, lane ^ 3, lane + 4 < 32 ? lane + 4 : lane,   lane >= 4 ? lane - 4 : lane, 0x49249249,
                            1, 0,        lane % 8 + 3 < 8 ? lane + 3 : lane};
    for (int k = 0; k < 8; ++k)
      EXPECT_EQ(found[static_cast<std::size_t>(8 * i + k)], expected[k]) << "thread " << i << ", collective " << k;
  }
}

__global__ void write_coordinates(std::int64_t* out) {
  const std::int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + std::int64_t{gridDim.y} * blockIdx.z);
  out[block * blockDim.x + threadIdx.x] += 1 + block * blockDim.x + threadIdx.x;
}

TEST(CudaBlock, EveryThreadOfEveryBlockRunsOnce) {
  const std::size_t threads = 5 * 3 * 2 * 40;
  const DeviceArray<std::int64_t> out(std::vector<std::int64_t>(threads, 0));
  launch("coordinates", &write_coordinates, {{5, 3, 2}, {40}}, cuda0, out.data());
  const std::vector<std::int64_t> found = out.read();
  for (std::size_t i = 0; i < threads; ++i) EXPECT_EQ(found[i], static_cast<std::int64_t>(i) + 1);
}

__global__ void write_nothing(float*) {}

TEST(Launch, RejectsAnInvalidShapeInOneSentence) {
  const auto error_of = [](const LaunchShape& shape) -> std::string {
    try {
      launch("touch", &write_nothing, shape, cuda0, static_cast<float*>(nullptr));
    } catch (const ValueError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({{1}, {1025}}),
            "[touch] a block is at least 1 and at most 1024 x 1024 x 64 threads: grid (1, 1, 1), block (1025, 1, 1), 0 "
            "bytes of shared memory");
  EXPECT_THAT(error_of({{1}, {32, 33}}), ::testing::HasSubstr("a block has at most 1024 threads"));
  EXPECT_THAT(error_of({{0}, {32}}), ::testing::HasSubstr("a grid is at least 1"));
  EXPECT_THAT(error_of({{1, 65536}, {32}}),
              ::testing::HasSubstr("a grid is at least 1 and at most 2147483647 x 65535 x 65535"));
  EXPECT_THAT(error_of({{1}, {32}, 227 * 1024 + 1}), ::testing::HasSubstr("at most 232448 bytes of shared memory"));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
