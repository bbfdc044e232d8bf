// Asynchronous products of warpgroups (wgmma, sm_90a). Four warps multiply 64 rows by a matrix in shared memory; each
// warp holds a fragment of A for 16 rows. Sums have the layout of mma.cuh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/mma/mma.cuh"
#include "kernels/cuda/mma/staged.h"

namespace poolgrad::kernels::cuda {

/// Whether the build has sm_90a code: whether 90a is among CMAKE_CUDA_ARCHITECTURES.
#if defined(POOLGRAD_CODE_FOR_HOPPER)
inline constexpr bool compiled_for_warpgroups = true;
#else
inline constexpr bool compiled_for_warpgroups = false;
#endif
/// Whether this compilation pass generates sm_90a code.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool multiplies_in_warpgroups = true;
#else
inline constexpr bool multiplies_in_warpgroups = false;
#endif

/// Makes the thread's writes to shared memory visible to products after the next barrier. Covers completed
/// cp_async_16() copies too.
__device__ inline void fence_for_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/// Orders earlier register accesses before the products that use the registers.
__device__ inline void begin_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
__device__ inline void commit_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
/// Waits for all but the last `Pending` groups. The thread may then access the sums.
template <int Pending, std::size_t Fragments>
__device__ void wait_for_products(FragmentC (&sums)[Fragments]) {
  if constexpr (multiplies_in_warpgroups) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(Pending) : "memory");
    POOLGRAD_UNROLL
    for (FragmentC& sum : sums) {
      POOLGRAD_UNROLL
      for (float& value : sum.value) settle(value);
    }
  }
}

#define POOLGRAD_SUM(f) "+f"(c[f].value[0]), "+f"(c[f].value[1]), "+f"(c[f].value[2]), "+f"(c[f].value[3])
#define POOLGRAD_SUMS_32 POOLGRAD_SUM(0), POOLGRAD_SUM(1), POOLGRAD_SUM(2), POOLGRAD_SUM(3)
#define POOLGRAD_SUMS_64 POOLGRAD_SUMS_32, POOLGRAD_SUM(4), POOLGRAD_SUM(5), POOLGRAD_SUM(6), POOLGRAD_SUM(7)
#define POOLGRAD_SUMS_128                                                                                   \
  POOLGRAD_SUMS_64, POOLGRAD_SUM(8), POOLGRAD_SUM(9), POOLGRAD_SUM(10), POOLGRAD_SUM(11), POOLGRAD_SUM(12), \
      POOLGRAD_SUM(13), POOLGRAD_SUM(14), POOLGRAD_SUM(15)
#define POOLGRAD_NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define POOLGRAD_NAMES_64 POOLGRAD_NAMES_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define POOLGRAD_NAMES_128                                                                    \
  POOLGRAD_NAMES_64                                                                           \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
  "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define POOLGRAD_WGMMA(type, columns, a, b, adds, order, ...)                                                          \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type \
               "." type " {" POOLGRAD_NAMES_##columns "}, " a ", " b ", p, 1, 1, " order ";}"                          \
               : POOLGRAD_SUMS_##columns                                                                               \
               : __VA_ARGS__, "l"(of_b), "r"(static_cast<int>(adds_to_c)), "n"(static_cast<int>(ByRows)))

/// Starts c (+)= a b with exact products and f32 sums. a is 64 x 16, and b is 16 x 32, 64 or 128 in shared memory; S is
/// Half or BFloat16. All threads of the warpgroup must call it.
template <class S, bool ByRows, std::size_t Fragments>
__device__ void multiply_in_warpgroup(FragmentC (&c)[Fragments], const FragmentAB& a, const Shared<Chunk>& memory,
                                      const StagedMatrix& b, bool adds_to_c) {
  static_assert(std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>);
  static_assert(Fragments == 4 || Fragments == 8 || Fragments == 16);
#define POOLGRAD_A "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3])
#define POOLGRAD_WGMMAS(type)                                                       \
  if constexpr (Fragments == 4)                                                     \
    POOLGRAD_WGMMA(type, 32, "{%16,%17,%18,%19}", "%20", "%21", "%22", POOLGRAD_A); \
  else if constexpr (Fragments == 8)                                                \
    POOLGRAD_WGMMA(type, 64, "{%32,%33,%34,%35}", "%36", "%37", "%38", POOLGRAD_A); \
  else                                                                              \
    POOLGRAD_WGMMA(type, 128, "{%64,%65,%66,%67}", "%68", "%69", "%70", POOLGRAD_A)
  if constexpr (multiplies_in_warpgroups) {
    const std::uint64_t of_b = b.descriptor(shared_address(memory, 0));
    if constexpr (std::is_same_v<S, Half>) {
      POOLGRAD_WGMMAS("f16");
    } else {
      POOLGRAD_WGMMAS("bf16");
    }
  }
#undef POOLGRAD_WGMMAS
#undef POOLGRAD_A
}
/// The same with a in shared memory, addressed by columns of its transpose like b.
template <class S, std::size_t Fragments>
__device__ void multiply_in_warpgroup(FragmentC (&c)[Fragments], const StagedMatrix& a, const Shared<Chunk>& memory,
                                      const StagedMatrix& b, bool adds_to_c) {
  static_assert(Fragments == 8 || Fragments == 16);
  constexpr bool ByRows = false;
#define POOLGRAD_WGMMAS(type)                                           \
  if constexpr (Fragments == 8)                                         \
    POOLGRAD_WGMMA(type, 64, "%32", "%33", "%34", "0, %35", "l"(of_a)); \
  else                                                                  \
    POOLGRAD_WGMMA(type, 128, "%64", "%65", "%66", "0, %67", "l"(of_a))
  if constexpr (multiplies_in_warpgroups) {
    const std::uint64_t of_a = a.descriptor(shared_address(memory, 0)), of_b = b.descriptor(shared_address(memory, 0));
    if constexpr (std::is_same_v<S, Half>) {
      POOLGRAD_WGMMAS("f16");
    } else {
      POOLGRAD_WGMMAS("bf16");
    }
  }
#undef POOLGRAD_WGMMAS
}
#undef POOLGRAD_WGMMA

}  // namespace poolgrad::kernels::cuda
