// Asynchronous copies on the emulated device, which reports faults of kernels that use them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/mma/mma.cuh"
#include "tests/kernels/cuda/device_array.h"

namespace poolgrad::kernels::cuda {
namespace {

using testing::cuda0;
using testing::DeviceArray;
using testing::error_of_kernels;
using ::testing::HasSubstr;

/// Reverses chunks within the block with asynchronous copies in two groups. Each kind but the first has one fault.
enum class CopyFault { none, no_wait, waits_for_one, no_commit, no_barrier, overwrites, half_a_warp, odd_address };

template <CopyFault fault>
__global__ void reverse_chunks(const Chunk* x, Chunk* y) {
  POOLGRAD_SHARED(Chunk, staged, 128);
  const int i = static_cast<int>(threadIdx.x);
  cp_async_16(staged, i, fault == CopyFault::odd_address ? &x[i].word[1] : &x[i].word[0], true);
  cp_async_commit();
  cp_async_16(staged, 64 + i, x + i, i % 2 == 0);
  if (fault != CopyFault::no_commit) cp_async_commit();
  if (fault == CopyFault::waits_for_one)
    cp_async_wait<1>();
  else if (fault != CopyFault::no_wait)
    cp_async_wait<0>();
  if (fault != CopyFault::no_barrier) __syncthreads();
  if (fault == CopyFault::half_a_warp && i % 32 < 16) ldmatrix_x4<false>(staged, i);
  y[i] = staged[63 - i];
  y[64 + i] = staged[127 - i];
  if (fault == CopyFault::overwrites) cp_async_16(staged, i, x, true);
}

std::vector<Chunk> counted(std::size_t n) {
  std::vector<Chunk> chunks(n);
  for (std::uint32_t i = 0; i < n; ++i) chunks[i] = {{i, i + 1, i + 2, i + 3}};
  return chunks;
}

template <CopyFault fault>
std::string error_of_copy_fault() {
  const DeviceArray<Chunk> x(counted(64)), y(counted(128));
  launch("reverse", &reverse_chunks<fault>, {{1}, {64}}, cuda0, x.data(), y.data());
  return error_of_kernels();
}

TEST(AsyncCopy, IsVisibleAfterAWaitAndABarrier) {
  const DeviceArray<Chunk> x(counted(64)), y(counted(128));
  launch("reverse", &reverse_chunks<CopyFault::none>, {{1}, {64}}, cuda0, x.data(), y.data());
  const std::vector<Chunk> found = y.read();
  for (std::uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(found[i].word[0], 63 - i);
    EXPECT_EQ(found[64 + i].word[3], i % 2 ? 66 - i : 0u) << "what does not exist is zero";
  }
}

TEST(AsyncCopy, WithoutAWaitIsReported) {
  using ::testing::AllOf;
  for (const std::string& error :
       {error_of_copy_fault<CopyFault::no_wait>(), error_of_copy_fault<CopyFault::waits_for_one>(),
        error_of_copy_fault<CopyFault::no_commit>()})
    EXPECT_THAT(error, AllOf(HasSubstr("[reverse] thread "), HasSubstr(" reads shared staged["),
                             HasSubstr("which is the target of an unfinished copy of thread "),
                             HasSubstr("has not waited for")));
}

TEST(AsyncCopy, NeedsABarrierForOtherThreads) {
  EXPECT_THAT(error_of_copy_fault<CopyFault::no_barrier>(),
              ::testing::AnyOf(HasSubstr("with no barrier in between"), HasSubstr("has not waited for"),
                               HasSubstr("no thread has written")));
}

TEST(AsyncCopy, BeforeAReadEndsIsReported) {
  EXPECT_THAT(error_of_copy_fault<CopyFault::overwrites>(),
              ::testing::AnyOf(HasSubstr("has read with no barrier in between"),  // if the reader runs first
                               HasSubstr("has not waited for")));                 // if the copying thread runs first
}

TEST(AsyncCopy, NeedsAlignmentTo16Bytes) {
  EXPECT_THAT(error_of_copy_fault<CopyFault::odd_address>(), HasSubstr("from an address that is not a multiple of 16"));
}

TEST(AsyncCopy, LdmatrixNeedsTheWholeWarp) {
  EXPECT_THAT(error_of_copy_fault<CopyFault::half_a_warp>(),
              ::testing::AllOf(HasSubstr("thread 0 waits at ldmatrix_x4 of"), HasSubstr("but thread 16 has returned")));
}

}  // namespace
}  // namespace poolgrad::kernels::cuda
