// The emulated device runs kernels that are right, and names what is wrong with those that are not.
#include "kernels/cuda/emulation/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "allocator/error.h"
#include "kernels/cuda/collectives.cuh"
#include "tests/kernels/cuda/device_array.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::cuda {
namespace {

using ::testing::AllOf;
using testing::cuda0;
using testing::DeviceArray;
using ::testing::HasSubstr;

/// Each block adds up its `Threads` consecutive elements.
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

TEST(EmulatedBlock, ReducesWhateverTheOrderOfItsThreads) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    expect_sums<32>();
    expect_sums<64>();
    expect_sums<1024>();
  }
}

/// The sum of a block's elements less the largest and the smallest, each found through the same shared memory.
__global__ void sum_without_extremes(const float* x, float* out) {
  const float value = x[threadIdx.x];
  const float sum = block_reduce<reductions::Sum, 96>(value);
  const float most = block_reduce<reductions::Maximum, 96>(value), least = block_reduce<reductions::Minimum, 96>(value);
  const float again = block_reduce<reductions::Sum, 96>(value);
  for (int repeat = 0; repeat < 3; ++repeat) out[threadIdx.x] = block_reduce<reductions::Sum, 96>(sum - again + 1.0f);
  out[threadIdx.x] = sum - most - least + (again - sum);
}

TEST(EmulatedBlock, ReductionsMayFollowEachOther) {
  std::vector<float> values(96);
  std::iota(values.begin(), values.end(), 1.0f);
  const DeviceArray<float> x(values), out(std::vector<float>(96, 0.0f));
  launch("extremes", &sum_without_extremes, {{1}, {96}}, cuda0, x.data(), out.data());
  EXPECT_EQ(out.read(), std::vector<float>(96, 96.0f * 97 / 2 - 96 - 1));
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

TEST(EmulatedBlock, CollectivesOfAWarpGiveWhatThePtxManualSays) {
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

TEST(EmulatedBlock, EveryThreadOfEveryBlockRunsOnce) {
  const std::size_t threads = 5 * 3 * 2 * 40;
  const DeviceArray<std::int64_t> out(std::vector<std::int64_t>(threads, 0));
  launch("coordinates", &write_coordinates, {{5, 3, 2}, {40}}, cuda0, out.data());
  const std::vector<std::int64_t> found = out.read();
  for (std::size_t i = 0; i < threads; ++i) EXPECT_EQ(found[i], static_cast<std::int64_t>(i) + 1);
}

/// x reversed within the block, through shared memory; each kind but the first has one fault.
enum class Fault {
  none,
  no_barrier,
  write_after_read,
  one_too_far,
  too_little,
  unwritten,
  early_return,
  two_barriers,
  half_a_warp,
  other_collective
};

template <Fault fault>
__global__ void reverse_block(float* x) {
  POOLGRAD_DYNAMIC_SHARED(float, staged);
  const unsigned i = threadIdx.x, n = blockDim.x;
  if (fault == Fault::early_return && i == 7) return;
  if (fault != Fault::unwritten || i != 9) staged[i] = x[i];
  if (fault == Fault::two_barriers && i < 32)
    __syncthreads();
  else if (fault != Fault::no_barrier)
    __syncthreads();
  if (fault == Fault::half_a_warp && i % 32 < 16) __syncwarp();
  if (fault == Fault::other_collective) {
    if (i % 2)
      __shfl_xor_sync(0xffffffffu, i, 1);
    else
      __shfl_xor_sync(0xffffffffu, i, 1);
  }
  x[i] = staged[fault == Fault::one_too_far ? n - i : n - 1 - i];
  if (fault == Fault::write_after_read) staged[i] = 0.0f;
}

template <Fault fault>
std::string error_of_fault() {
  const DeviceArray<float> x(std::vector<float>(64, 1.0f));
  const std::int64_t bytes = fault == Fault::too_little ? 63 * 4 : 64 * 4;
  launch("reverse", &reverse_block<fault>, {{1}, {64}, bytes}, cuda0, x.data());
  try {
    synchronize(cuda0);
  } catch (const CudaError& error) {
    return error.what();
  }
  return "no error";
}

TEST(KernelMutants, ARightKernelHasNoError) {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> x(values);
  launch("reverse", &reverse_block<Fault::none>, {{1}, {64}, 64 * 4}, cuda0, x.data());
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(x.read(), values);
}

TEST(KernelMutants, AMissingBarrierIsARace) {
  for (int repeat = 0; repeat < 8; ++repeat)  // whichever thread comes first
    EXPECT_THAT(error_of_fault<Fault::no_barrier>(),
                AllOf(HasSubstr("[reverse] thread "), HasSubstr(" shared staged["), HasSubstr("block_test.cpp:"),
                      ::testing::AnyOf(HasSubstr("with no barrier in between"), HasSubstr("nobody has written"))));
}

TEST(KernelMutants, AWriteThatOvertakesAReadIsARace) {
  EXPECT_THAT(error_of_fault<Fault::write_after_read>(), HasSubstr("with no barrier in between"));
}

TEST(KernelMutants, AnIndexBeyondSharedMemoryIsNamed) {
  EXPECT_THAT(error_of_fault<Fault::one_too_far>(),
              AllOf(HasSubstr("[reverse] thread 0 uses shared staged[64] at block_test.cpp:"),
                    HasSubstr("which has 64 elements (block 0)")));
}

TEST(KernelMutants, TooLittleDynamicSharedMemoryIsNamed) {
  EXPECT_THAT(error_of_fault<Fault::too_little>(),
              AllOf(HasSubstr("thread 63 uses shared staged[63]"), HasSubstr("which has 63 elements")));
}

TEST(KernelMutants, SharedMemoryThatNobodyHasWrittenIsNamed) {
  EXPECT_THAT(error_of_fault<Fault::unwritten>(),
              AllOf(HasSubstr("thread 54 reads shared staged[9]"), HasSubstr("which nobody has written")));
}

TEST(KernelMutants, AThreadThatReturnsBeforeABarrierIsNamed) {
  EXPECT_THAT(
      error_of_fault<Fault::early_return>(),
      AllOf(HasSubstr("thread 0 waits at __syncthreads of block_test.cpp:"), HasSubstr("but thread 7 has returned")));
}

TEST(KernelMutants, ThreadsAtTwoBarriersAreNamed) {
  EXPECT_THAT(error_of_fault<Fault::two_barriers>(), AllOf(HasSubstr("thread 0 waits at __syncthreads of"),
                                                           HasSubstr("but thread 32 waits at __syncthreads of")));
}

TEST(KernelMutants, ACollectiveOfHalfAWarpIsNamed) {
  EXPECT_THAT(error_of_fault<Fault::half_a_warp>(),
              AllOf(HasSubstr("thread 0 waits at __syncwarp of"), HasSubstr("but thread 16 has returned")));
}

TEST(KernelMutants, LanesAtTwoCollectivesAreNamed) {
  EXPECT_THAT(error_of_fault<Fault::other_collective>(),
              AllOf(HasSubstr("lanes of a warp are at different collectives: thread "),
                    HasSubstr(" at __shfl_xor_sync of block_test.cpp:")));
}

__global__ void touch_address(float* x) { x[threadIdx.x] = 1.0f; }

using KernelMutantsDeathTest = ::testing::Test;

TEST(KernelMutantsDeathTest, AKernelThatLeavesTheMemoryOfItsDeviceEndsTheProgramByName) {
  const DeviceArray<float> x(std::vector<float>(4, 1.0f));
  float* const far = x.data() + (std::int64_t{64} << 20);
  EXPECT_DEATH(
      {
        launch("touch", &touch_address, {{1}, {1}}, cuda0, far);
        synchronize(cuda0);
      },
      R"(\[touch\] thread 0 of block 0 uses address 0x[0-9a-f]+ of cuda:0, where there is no memory)");
}

TEST(KernelMutantsDeathTest, AHostThatReadsMemoryOfTheDeviceEndsTheProgramByName) {
  const DeviceArray<float> x(std::vector<float>(4, 1.0f));
  EXPECT_EQ(x.read()[0], 1.0f);
  EXPECT_DEATH(*const_cast<volatile float*>(x.data()),
               R"(\[emulation\] the host uses address 0x[0-9a-f]+, which is memory of cuda:0)");
}

TEST(Launch, IsRefusedInOneSentenceWhereAGpuWouldRefuseIt) {
  const auto error_of = [](const LaunchShape& shape) -> std::string {
    try {
      launch("touch", &touch_address, shape, cuda0, static_cast<float*>(nullptr));
    } catch (const ValueError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({{1}, {1025}}),
            "[touch] a block is at least 1 and at most 1024 x 1024 x 64 threads: grid (1, 1, 1), block (1025, 1, 1), 0 "
            "bytes of shared memory");
  EXPECT_THAT(error_of({{1}, {32, 33}}), HasSubstr("a block has at most 1024 threads"));
  EXPECT_THAT(error_of({{0}, {32}}), HasSubstr("a grid is at least 1"));
  EXPECT_THAT(error_of({{1, 65536}, {32}}), HasSubstr("a grid is at least 1 and at most 2147483647 x 65535 x 65535"));
  EXPECT_THAT(error_of({{1}, {32}, 227 * 1024 + 1}), HasSubstr("at most 232448 bytes of shared memory"));
}

__global__ void declare_much(float*) {
  POOLGRAD_SHARED(double, large, 20000);
  large[0] = 1.0;
  POOLGRAD_SHARED(double, larger, 20000);
  larger[0] = 1.0;
}

TEST(Launch, StaticSharedMemoryCountsToo) {
  launch("large", &declare_much, {{1}, {32}}, cuda0, static_cast<float*>(nullptr));
  try {
    synchronize(cuda0);
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_THAT(error.what(), HasSubstr("the shared array larger at block_test.cpp"));
  }
}

TEST(Launch, AnErrorOfAnEarlierLaunchIsHeardOfOnceAndTheNextCallWorks) {
  const DeviceArray<float> x(std::vector<float>(64, 1.0f));
  launch("reverse", &reverse_block<Fault::unwritten>, {{1}, {64}, 256}, cuda0, x.data());
  EXPECT_THROW(synchronize(cuda0), CudaError);
  launch("reverse", &reverse_block<Fault::none>, {{1}, {64}, 256}, cuda0, x.data());
  EXPECT_NO_THROW(synchronize(cuda0));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
