// What the threads of a warp or of a block find together. Every thread of the block calls; a block has a multiple of 32
// threads, at most 1024. Sums are taken in one order for a size of block, whatever runs first.
#pragma once

#include <cstring>

#include "kernels/cuda/launcher.cuh"
#include "kernels/definition/reduction.h"

namespace poolgrad::kernels::cuda {

inline constexpr unsigned all_threads_of_warp = 0xffffffffu;
inline constexpr int threads_per_warp = 32;

/// The value of the lane whose number differs in the bits of `lanes`: of a number, or of a struct of whole words.
template <class T>
__device__ T shuffle_xor(T value, int lanes) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(all_threads_of_warp, value, lanes);
  } else {
    unsigned long long words[sizeof(T) / 8];
    static_assert(sizeof(words) == sizeof(T) && std::is_trivially_copyable_v<T>);
    std::memcpy(words, &value, sizeof(T));
    POOLGRAD_UNROLL
    for (auto& word : words) word = __shfl_xor_sync(all_threads_of_warp, word, lanes);
    std::memcpy(&value, words, sizeof(T));
    return value;
  }
}

/// combine() of the values of neighbouring `lanes`, a power of two, in each of them: a butterfly, the same bits in
/// every lane where combine() is commutative.
template <class Reduction, class T>
__device__ T warp_reduce(T value, int lanes = threads_per_warp) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = Reduction::combine(value, shuffle_xor(value, distance));
  return value;
}

/// combine() of the values of `Threads` threads, a power of two, in each of them: they are a block, or, where they are
/// 32, each warp of one.
template <class Reduction, int Threads, class T>
__device__ T block_reduce(T value) {
  static_assert(Threads % threads_per_warp == 0 && Threads <= 1024 && (Threads & (Threads - 1)) == 0);
  constexpr int warps = Threads / threads_per_warp;
  value = warp_reduce<Reduction>(value);
  if constexpr (warps > 1) {
    POOLGRAD_SHARED(T, partial, warps);
    const int warp = static_cast<int>(threadIdx.x) / threads_per_warp;
    const int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
    __syncthreads();  // who came here before has read what it found
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_reduce<Reduction>(static_cast<T>(partial[lane % warps]), warps);
  }
  return value;
}

/// Sums of what threads hold: of those before this one, and of all.
template <class Sum>
struct Prefix {
  Sum before, total;
};

template <class Sum>
__device__ Prefix<Sum> warp_prefix(Sum value) {
  const int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
  for (int distance = 1; distance < threads_per_warp; distance *= 2) {
    const Sum left = __shfl_up_sync(all_threads_of_warp, value, static_cast<unsigned>(distance));
    if (lane >= distance) value += left;
  }
  const Sum before = __shfl_up_sync(all_threads_of_warp, value, 1u);
  return {lane ? before : Sum{}, __shfl_sync(all_threads_of_warp, value, threads_per_warp - 1)};
}

/// Of `Threads` threads: a block, or, where they are 32, each warp of one.
template <int Threads, class Sum>
__device__ Prefix<Sum> block_prefix(Sum value) {
  Prefix<Sum> found = warp_prefix(value);
  if constexpr (Threads > threads_per_warp) {
    constexpr int warps = Threads / threads_per_warp;
    POOLGRAD_SHARED(Sum, totals, warps);
    const int warp = static_cast<int>(threadIdx.x) / threads_per_warp;
    __syncthreads();  // the totals before have been read
    if (static_cast<int>(threadIdx.x) % threads_per_warp == 0) totals[warp] = found.total;
    __syncthreads();
    found.total = Sum{};
    for (int w = 0; w < warps; ++w) {
      if (w == warp) found.before += found.total;
      found.total += static_cast<Sum>(totals[w]);
    }
  }
  return found;
}

}  // namespace poolgrad::kernels::cuda
