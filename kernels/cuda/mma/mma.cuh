// Wrappers of the tensor-core instructions of sm_80: mma.sync, ldmatrix, and cp.async for their operands. Tests have a
// host twin of each (tests/emulation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/mma/fragments.h"
#include "kernels/dtype.h"

namespace poolgrad::kernels::cuda {

/// Returns threadIdx.x and reads it anew each time, so that derived values do not occupy registers for the whole
/// kernel.
__device__ inline int thread_of_block() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ inline std::uint32_t shared_address(const Shared<Chunk>& memory, int index) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(&memory[index]));
}

/// c += a b with exact products and f32 sums; S is Half or BFloat16. All threads of the warp must call it.
template <class S>
__device__ void mma_m16n8k16(FragmentC& c, const FragmentAB& a, std::uint32_t b0, std::uint32_t b1) {
  static_assert(std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>);
  if constexpr (std::is_same_v<S, Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.value[0]), "+f"(c.value[1]), "+f"(c.value[2]), "+f"(c.value[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.value[0]), "+f"(c.value[1]), "+f"(c.value[2]), "+f"(c.value[3])
        : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices whose rows are the chunks that the lanes address. Word m is the lane's part of matrix m or
/// of its transpose. All threads of the warp must call it.
template <bool Transposed>
__device__ FragmentAB ldmatrix_x4(const Shared<Chunk>& memory, int index) {
  FragmentAB f;
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                 : "r"(shared_address(memory, index))
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.word[0]), "=r"(f.word[1]), "=r"(f.word[2]), "=r"(f.word[3])
                 : "r"(shared_address(memory, index))
                 : "memory");
  return f;
}

/// Starts a copy of 16 bytes, aligned to 16, to a chunk. Without `exists` the chunk becomes zero and nothing is read.
/// The thread sees the data after cp_async_wait(), other threads after a further barrier.
__device__ inline void cp_async_16(const Shared<Chunk>& memory, int index, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(memory, index)), "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
               : "memory");
}
/// Makes the thread's copies since the last commit a group.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
/// Waits for all of the thread's groups except the last `Pending`.
template <int Pending>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

/// Materializes x here, so that its inputs can leave registers.
__device__ inline void settle(float& x) { asm volatile("" : "+f"(x)); }

/// Returns 2^x within a few units in the last place; 0 gives 1, -infinity gives 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Returns two numbers rounded to S, the first in the lower half.
template <class S>
__device__ std::uint32_t packed_pair(float first, float second) {
  std::uint32_t word;
  if constexpr (std::is_same_v<S, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

}  // namespace poolgrad::kernels::cuda
