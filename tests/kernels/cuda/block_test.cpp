// The emulated device runs correct kernels and reports the faults of incorrect ones.
#include "tests/emulation/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "allocator/error.h"
#include "kernels/cuda/collectives.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/mma/mma.cuh"
#include "tests/kernels/cuda/device_array.h"
#include "tests/test_seed.h"

namespace poolgrad::kernels::cuda {
namespace {

using ::testing::AllOf;
using testing::cuda0;
using testing::DeviceArray;
using testing::error_of_kernels;
using ::testing::HasSubstr;

/// Reverses x within the block through shared memory. Each kind but the first has one fault.
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
  return error_of_kernels();
}

TEST(KernelMutants, ACorrectKernelHasNoError) {
  std::vector<float> values(64);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> x(values);
  launch("reverse", &reverse_block<Fault::none>, {{1}, {64}, 64 * 4}, cuda0, x.data());
  std::reverse(values.begin(), values.end());
  EXPECT_EQ(x.read(), values);
}

TEST(KernelMutants, AMissingBarrierIsARace) {
  for (int repeat = 0; repeat < 8; ++repeat)  // in any order of threads
    EXPECT_THAT(error_of_fault<Fault::no_barrier>(),
                AllOf(HasSubstr("[reverse] thread "), HasSubstr(" shared staged["), HasSubstr("block_test.cpp:"),
                      ::testing::AnyOf(HasSubstr("with no barrier in between"), HasSubstr("no thread has written"))));
}

TEST(KernelMutants, AWriteOvertakingAReadIsARace) {
  EXPECT_THAT(error_of_fault<Fault::write_after_read>(), HasSubstr("with no barrier in between"));
}

TEST(KernelMutants, AnIndexBeyondSharedMemoryIsReported) {
  EXPECT_THAT(error_of_fault<Fault::one_too_far>(),
              AllOf(HasSubstr("[reverse] thread 0 uses shared staged[64] at block_test.cpp:"),
                    HasSubstr("which has 64 elements (block 0)")));
}

TEST(KernelMutants, TooLittleDynamicSharedMemoryIsReported) {
  EXPECT_THAT(error_of_fault<Fault::too_little>(),
              AllOf(HasSubstr("thread 63 uses shared staged[63]"), HasSubstr("which has 63 elements")));
}

TEST(KernelMutants, UninitializedSharedMemoryIsReported) {
  EXPECT_THAT(error_of_fault<Fault::unwritten>(),
              AllOf(HasSubstr("thread 54 reads shared staged[9]"), HasSubstr("which no thread has written")));
}

TEST(KernelMutants, AReturnBeforeABarrierIsReported) {
  EXPECT_THAT(
      error_of_fault<Fault::early_return>(),
      AllOf(HasSubstr("thread 0 waits at __syncthreads of block_test.cpp:"), HasSubstr("but thread 7 has returned")));
}

TEST(KernelMutants, ThreadsAtTwoBarriersAreReported) {
  EXPECT_THAT(error_of_fault<Fault::two_barriers>(), AllOf(HasSubstr("thread 0 waits at __syncthreads of"),
                                                           HasSubstr("but thread 32 waits at __syncthreads of")));
}

TEST(KernelMutants, ACollectiveOfHalfAWarpIsReported) {
  EXPECT_THAT(error_of_fault<Fault::half_a_warp>(),
              AllOf(HasSubstr("thread 0 waits at __syncwarp of"), HasSubstr("but thread 16 has returned")));
}

TEST(KernelMutants, LanesAtTwoCollectivesAreReported) {
  EXPECT_THAT(error_of_fault<Fault::other_collective>(),
              AllOf(HasSubstr("lanes of a warp are at different collectives: thread "),
                    HasSubstr(" at __shfl_xor_sync of block_test.cpp:")));
}

/// Statements between a lane's write to shared memory and another lane's read.
enum class Between { syncwarp, shuffle, ballot, product, shuffle_and_syncwarp };

template <Between between>
__global__ void swap_neighbours(float* x) {
  POOLGRAD_SHARED(float, staged, 32);
  const int i = static_cast<int>(threadIdx.x);
  staged[i] = x[i];
  if (between == Between::shuffle || between == Between::shuffle_and_syncwarp) __shfl_xor_sync(0xffffffffu, i, 1);
  if (between == Between::ballot) __ballot_sync(0xffffffffu, i % 2 == 0);
  if (between == Between::product) {
    FragmentC sums{};
    mma_m16n8k16<Half>(sums, {}, 0, 0);
  }
  if (between == Between::syncwarp || between == Between::shuffle_and_syncwarp) __syncwarp();
  x[i] = staged[i ^ 1];
}

template <Between between>
std::string error_of_swap() {
  std::vector<float> values(32);
  std::iota(values.begin(), values.end(), 0.0f);
  const DeviceArray<float> x(values);
  launch("swap", &swap_neighbours<between>, {{1}, {32}}, cuda0, x.data());
  const std::string error = error_of_kernels();
  for (std::size_t i = 0; i < values.size(); i += 2) std::swap(values[i], values[i + 1]);
  return error != "no error" || x.read() == values ? error : "wrong values";
}

TEST(KernelMutants, AWarpCollectiveIsNoBarrier) {
  EXPECT_EQ(error_of_swap<Between::syncwarp>(), "no error");
  EXPECT_EQ(error_of_swap<Between::shuffle_and_syncwarp>(), "no error");
  for (const std::string& error :
       {error_of_swap<Between::shuffle>(), error_of_swap<Between::ballot>(), error_of_swap<Between::product>()})
    EXPECT_THAT(error, AllOf(HasSubstr("[swap] thread "), HasSubstr(" reads shared staged["),
                             HasSubstr("has written with no barrier in between")));
}

/// Time at which a lane writes its row, relative to ldmatrix: before or after it without a barrier, or properly.
enum class RowWritten { before, after, properly };

template <RowWritten when>
__global__ void read_rows(float* x) {
  POOLGRAD_SHARED(Chunk, staged, 32);
  const int i = static_cast<int>(threadIdx.x);
  staged[i] = Chunk{};
  if (when != RowWritten::before) __syncwarp();
  const FragmentAB rows = ldmatrix_x4<false>(staged, i);
  if (when == RowWritten::properly) __syncwarp();
  if (when != RowWritten::before) staged[i] = Chunk{};
  x[i] = static_cast<float>(rows.word[0]);
}

/// All lanes read one element; the last lane writes it.
template <bool waits>
__global__ void read_and_write(float* x) {
  POOLGRAD_SHARED(float, staged, 1);
  const int i = static_cast<int>(threadIdx.x);
  if (i == 0) staged[0] = 1.0f;
  __syncwarp();
  x[i] = staged[0];
  __shfl_xor_sync(0xffffffffu, i, 1);
  if (waits) __syncwarp();
  x[i] += staged[0];
  if (waits) __syncwarp();
  if (i == 3) staged[0] = 2.0f;
}

std::string error_of_kernel(void (*kernel)(float*)) {
  const DeviceArray<float> x(std::vector<float>(32));
  launch("rows", kernel, {{1}, {32}}, cuda0, x.data());
  return error_of_kernels();
}

TEST(KernelMutants, LdmatrixReadsRowsOfOtherLanes) {
  EXPECT_EQ(error_of_kernel(&read_rows<RowWritten::properly>), "no error");
  EXPECT_THAT(error_of_kernel(&read_rows<RowWritten::before>), HasSubstr("has written with no barrier in between"));
  EXPECT_THAT(error_of_kernel(&read_rows<RowWritten::after>), HasSubstr("has read with no barrier in between"));
}

TEST(KernelMutants, AReadingLaneMayNotWriteWithoutABarrier) {
  EXPECT_EQ(error_of_kernel(&read_and_write<true>), "no error");
  for (int repeat = 0; repeat < 40; ++repeat)  // in some runs the writing lane reads last
    EXPECT_THAT(error_of_kernel(&read_and_write<false>), HasSubstr("has read with no barrier in between"));
}

__global__ void move_packs(float* to, const float* from) {
  const unsigned at = 4 * threadIdx.x;
  store_whole(to + at, load_whole<Pack<float, 4>>(from + at));
}

TEST(KernelMutants, AMisalignedVectorAccessIsReported) {
  const DeviceArray<float> from(std::vector<float>(36, 1.0f)), to(std::vector<float>(36));
  const auto error_of_move = [&](std::int64_t shift_to, std::int64_t shift_from) -> std::string {
    launch("move", &move_packs, {{1}, {8}}, cuda0, to.data() + shift_to, from.data() + shift_from);
    return error_of_kernels();
  };
  EXPECT_EQ(error_of_move(0, 4), "no error");
  EXPECT_THAT(error_of_move(0, 1), ::testing::ContainsRegex(R"(\[move\] thread [0-7] loads 16 bytes at 0x[0-9a-f]*4, )"
                                                            R"(which is not a multiple of 16 \(block 0\))"));
  EXPECT_THAT(error_of_move(2, 0),
              ::testing::ContainsRegex(R"(\[move\] thread [0-7] stores 16 bytes at 0x[0-9a-f]*8, )"));
}

__global__ void touch_address(float* x) { x[threadIdx.x] = 1.0f; }

using KernelMutantsDeathTest = ::testing::Test;

TEST(KernelMutantsDeathTest, AKernelOutsideDeviceMemoryEndsTheProgramByName) {
  const DeviceArray<float> x(std::vector<float>(4, 1.0f));
  float* const far = x.data() + (std::int64_t{64} << 20);
  EXPECT_DEATH(
      {
        launch("touch", &touch_address, {{1}, {1}}, cuda0, far);
        synchronize(cuda0);
      },
      R"(\[touch\] thread 0 of block 0 uses address 0x[0-9a-f]+ of cuda:0, where no memory is mapped)");
}

TEST(KernelMutantsDeathTest, AHostReadOfDeviceMemoryEndsTheProgramByName) {
  const DeviceArray<float> x(std::vector<float>(4, 1.0f));
  EXPECT_EQ(x.read()[0], 1.0f);
  EXPECT_DEATH(*const_cast<volatile float*>(x.data()),
               R"(\[emulation\] the host uses address 0x[0-9a-f]+, which is memory of cuda:0)");
}

#if defined(__SANITIZE_THREAD__)
template <bool Ordered>
__global__ void read_reversed(float* x) {
  x[threadIdx.x] = 1.0f;
  if (Ordered)
    __syncthreads();
  else
    __syncwarp();
  x[blockDim.x + threadIdx.x] = x[blockDim.x - 1 - threadIdx.x];
}

template <bool Ordered>
[[noreturn]] void read_reversed_and_exit() {
  const DeviceArray<float> x(std::vector<float>(512));
  launch("read_reversed", &read_reversed<Ordered>, {{1}, {256}}, cuda0, x.data());
  synchronize(cuda0);
  std::exit(0);
}

TEST(KernelMutantsDeathTest, TheThreadSanitizerDetectsARaceInGlobalMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(read_reversed_and_exit<true>(), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(read_reversed_and_exit<false>(), ::testing::ExitedWithCode(66), "data race.*read_reversed<false>");
}
#endif

// Limits of shared memory. Each kernel has 16 KiB of static shared memory and a limit of its own.

template <int Number>
__global__ void fill_shared(float* x) {
  POOLGRAD_SHARED(double, fixed, 2048);
  POOLGRAD_DYNAMIC_SHARED(float, staged);
  fixed[threadIdx.x] = 1.0;
  staged[threadIdx.x] = 1.0f;
  x[threadIdx.x] = static_cast<float>(fixed[threadIdx.x]) + staged[threadIdx.x];
}
__global__ void declare_much(float*) {
  POOLGRAD_SHARED(double, fixed, 2048);
  POOLGRAD_SHARED(double, large, 4097);
  fixed[threadIdx.x] = large[threadIdx.x] = 1.0;
}
using SharedKernel = void (*)(float*);
constexpr std::int64_t kib = 1024;

/// The error of a launch with `bytes` of dynamic shared memory, through the launcher or directly.
std::string error_of_shared(SharedKernel kernel, std::int64_t bytes, bool by_launcher = true) {
  const DeviceArray<float> x(std::vector<float>(32));
  try {
    const LaunchShape shape{{1}, {32}, bytes};
    by_launcher ? launch("fill", kernel, shape, cuda0, x.data())
                : start<float*>("fill", kernel, shape, cuda0, x.data());
    EXPECT_EQ(x.read(), std::vector<float>(32, 2.0f));
  } catch (const CudaError& error) {
    return error.what();
  }
  return "no error";
}
std::int64_t limit_of(SharedKernel kernel) { return emulation::shared_limit(0, reinterpret_cast<const void*>(kernel)); }

TEST(Launch, RaisesTheSharedMemoryLimitToStaticPlusDynamicMemory) {
  const SharedKernel kernel = &fill_shared<0>;
  EXPECT_EQ(error_of_shared(kernel, 31 * kib, false), "no error") << "which needs no limit";
  EXPECT_THAT(error_of_shared(kernel, 32 * kib, false),
              AllOf(HasSubstr("[fill] the shared array fixed at block_test.cpp:"),
                    HasSubstr("makes it 49152 bytes of shared memory, and a block has at most 49151")));
  EXPECT_EQ(error_of_shared(kernel, 32 * kib), "no error");
  EXPECT_EQ(error_of_shared(kernel, 100 * kib), "no error");
  EXPECT_THAT(error_of_shared(kernel, 212 * kib), HasSubstr("and a block has at most 232448"));
}

TEST(Launch, NeverLowersTheSharedMemoryLimit) {
  const SharedKernel kernel = &fill_shared<1>;
  EXPECT_EQ(error_of_shared(kernel, kib), "no error");
  EXPECT_EQ(limit_of(kernel), 48 * kib);
  EXPECT_EQ(error_of_shared(kernel, 100 * kib), "no error");
  EXPECT_EQ(error_of_shared(kernel, 60 * kib), "no error");
  EXPECT_EQ(limit_of(kernel), 100 * kib) << "another thread may have been promised that, and launch next";
}

TEST(Launch, ThreadsWithDifferentSharedMemoryDoNotInterfere) {
  const SharedKernel kernel = &fill_shared<2>;
  std::vector<std::thread> threads;
  for (const std::int64_t bytes : {80 * kib, 50 * kib})
    threads.emplace_back([=] {
      for (int repeat = 0; repeat < 100; ++repeat) EXPECT_EQ(error_of_shared(kernel, bytes), "no error");
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(KernelMutants, SharedMemoryBeyondTheKernelLimitIsReported) {
  const SharedKernel kernel = &fill_shared<3>;
  emulation::set_shared_limit(0, reinterpret_cast<const void*>(kernel), 17 * kib);
  EXPECT_EQ(error_of_shared(kernel, 34 * kib, false),
            "[fill] a launch with 34816 bytes of dynamic shared memory is above the kernel's limit of 17408");
}

TEST(KernelMutants, StaticSharedMemoryBeyondNvccLimitIsReported) {
  EXPECT_THAT(error_of_shared(&declare_much, 0),
              AllOf(HasSubstr("[fill] the shared array large at block_test.cpp:"),
                    HasSubstr("makes it 49160 bytes of shared memory, and a block has at most 49152")));
}

TEST(Launch, AnAsynchronousErrorIsReportedOnce) {
  const DeviceArray<float> x(std::vector<float>(64, 1.0f));
  launch("reverse", &reverse_block<Fault::unwritten>, {{1}, {64}, 256}, cuda0, x.data());
  EXPECT_THROW(synchronize(cuda0), CudaError);
  launch("reverse", &reverse_block<Fault::none>, {{1}, {64}, 256}, cuda0, x.data());
  EXPECT_NO_THROW(synchronize(cuda0));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
