// Products of warpgroups (wgmma, Hopper's sm_90a alone): four warps multiply 64 rows, of which they have a fragment of
// A for 16 each, with a matrix in shared memory, and go on while it is multiplied. Each warp has its part of the sums
// where it would have those of mma.cuh. The twins on the host let nobody have the sums before the wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/cuda/mma/mma.cuh"
#include "kernels/cuda/mma/staged.h"

#if !defined(__CUDACC__)
#include <cstring>
#endif

namespace poolgrad::kernels::cuda {

#if defined(__CUDACC__)

/// Whether there is code for GPUs that have them: whether 90a is among CMAKE_CUDA_ARCHITECTURES.
#if defined(POOLGRAD_CODE_FOR_HOPPER)
inline constexpr bool compiled_for_warpgroups = true;
#else
inline constexpr bool compiled_for_warpgroups = false;
#endif
/// Whether the code that is generated now is for one.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool multiplies_in_warpgroups = true;
#else
inline constexpr bool multiplies_in_warpgroups = false;
#endif

/// What the thread has written to shared memory, by cp_async_16() that it has waited for too, may be multiplied after a
/// barrier behind this.
__device__ inline void fence_for_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}
/// Between uses of registers and products with them.
__device__ inline void begin_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}
__device__ inline void commit_products() {
  if constexpr (multiplies_in_warpgroups) asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
/// Waits for all but the last `Pending` groups. The sums are the thread's again.
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

/// Begins c (+)= a b, products exact and sums in f32: a 64 x 16, b 16 x 32, 64 or 128, where it is described; S is Half
/// or BFloat16. A collective of the warpgroup.
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
/// The same with a where it is described, by columns of its transpose, as b.
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

#else

inline constexpr bool compiled_for_warpgroups = true, multiplies_in_warpgroups = true;

inline void fence_for_products() { emulation::fence_for_products(); }
inline void begin_products() { emulation::begin_products(); }
inline void commit_products() { emulation::commit_products(); }
template <int Pending, std::size_t Fragments>
void wait_for_products(FragmentC (&)[Fragments]) {
  emulation::wait_for_products(Pending);
}

/// A matrix of 16 by n elements in shared memory, as its descriptor says.
class DescribedMatrix {
 public:
  DescribedMatrix(const Shared<Chunk>& memory, const StagedMatrix& matrix, bool by_rows, Where where)
      : array_(memory.array()), by_rows_(by_rows), where_(where) {
    const std::uint64_t descriptor = matrix.descriptor(0);
    first_ = static_cast<int>(descriptor & 0x3fff);
    beyond_ = static_cast<int>(descriptor >> 16 & 0x3fff);
    eight_rows_ = static_cast<int>(descriptor >> 32 & 0x3fff);
    across_ = descriptor >> 62 == 1 ? 8 : 4;
    if (descriptor >> 62 == 0 || first_ / across_ % 8 != 0)
      emulation::refuse_product("begins at chunk " + std::to_string(first_) + ", in the middle of eight rows", where);
  }
  /// Where the eight elements are that element n of those of number k is among.
  int chunk(int n, int k) const {
    const int in_panel = n & (8 * across_ - 1), panel = (n - in_panel) / (across_ == 8 ? 64 : 32);
    const int plain = by_rows_ ? first_ + panel * beyond_ + in_panel / 8 + k / 8 * eight_rows_ + k % 8 * across_
                               : first_ + n / 8 * eight_rows_ + n % 8 * across_ + k / 8;
    return plain ^ (plain / 8 & (across_ - 1));
  }
  /// Element n of all 16.
  template <class S>
  void take(int n, double (&elements)[16]) const {
    int at = 0;
    for (int k = 0; k < 16; ++k) {
      if (by_rows_ || k % 8 == 0) at = chunk(n, k);
      S element;
      std::memcpy(&element.bits, array_.data + at * 16 + (by_rows_ ? n : k) % elements_of_chunk * 2, 2);
      elements[k] = static_cast<float>(element);
    }
  }
  /// The calling lane's share of what the warp reads, elements from `first` on, until the product is done.
  void read(int first, int count) const {
    const int chunks = by_rows_ ? count / 8 * 16 : count * 2;
    for (int i = emulation::lane(); i < chunks; i += emulation::warp_size)
      emulation::read_for_product(
          array_, by_rows_ ? chunk(first + i / 16 * 8, i % 16) : chunk(first + i / 2, i % 2 * 8), where_);
  }

 private:
  const emulation::SharedArray& array_;
  const bool by_rows_;
  const Where where_;
  int first_, beyond_, eight_rows_, across_;
};

/// The lane's rows of a, both of the warp's.
using LaneRows = double[2][16];

template <class S, std::size_t Fragments>
void add_product(FragmentC (&c)[Fragments], const LaneRows& a, const DescribedMatrix& b, bool adds_to_c, Where where) {
  constexpr int columns = static_cast<int>(Fragments) * 8;
  b.read(0, columns);
  float* const sums = emulation::sums_of_product(&c[0].value[0], Fragments * elements_of_c, adds_to_c, where);
  for (int column = place_in_c(emulation::lane(), 0).column; column < columns; column += column % 2 == 0 ? 1 : 7) {
    double elements[16], sum[2] = {};
    b.template take<S>(column, elements);
    for (int k = 0; k < 16; ++k)
      for (int half = 0; half < 2; ++half) sum[half] += a[half][k] * elements[k];
    for (int half = 0; half < 2; ++half) {
      float& total = sums[column / 8 * elements_of_c + 2 * half + column % 2];
      total = static_cast<float>(total + sum[half]);
    }
  }
}

template <class S, bool ByRows, std::size_t Fragments>
void multiply_in_warpgroup(FragmentC (&c)[Fragments], const FragmentAB& a, const Shared<Chunk>& memory,
                           const StagedMatrix& b, bool adds_to_c, Where where = Where::current()) {
  static constexpr auto in_a = holders_of<16, 16, elements_of_a>(place_in_a);
  struct Elements {
    float a[elements_of_a];
  } own;
  for (int n = 0; n < elements_of_a / 2; ++n) put_elements<S>(own.a, n, a.word[n]);
  const emulation::Lanes<Elements> of("multiply_in_warpgroup", own, where);
  LaneRows rows;
  for (int half = 0; half < 2; ++half)
    for (std::size_t k = 0; k < 16; ++k) {
      const Holder x = in_a[static_cast<std::size_t>(place_in_c(emulation::lane(), 2 * half).row)][k];
      rows[half][k] = of[x.lane].a[x.element];
    }
  add_product<S>(c, rows, DescribedMatrix(memory, b, ByRows, where), adds_to_c, where);
}
template <class S, std::size_t Fragments>
void multiply_in_warpgroup(FragmentC (&c)[Fragments], const StagedMatrix& a, const Shared<Chunk>& memory,
                           const StagedMatrix& b, bool adds_to_c, Where where = Where::current()) {
  const DescribedMatrix all(memory, a, false, where);
  const int first = static_cast<int>(threadIdx.x) / emulation::warp_size % 4 * 16;
  emulation::exchange("multiply_in_warpgroup", nullptr, 0, where);
  all.read(first, 16);
  LaneRows rows;
  for (int half = 0; half < 2; ++half) all.take<S>(first + place_in_c(emulation::lane(), 2 * half).row, rows[half]);
  add_product<S>(c, rows, DescribedMatrix(memory, b, false, where), adds_to_c, where);
}

#endif

}  // namespace poolgrad::kernels::cuda
