// Collective operations of a warp or a block. Every thread of the block must call them; a block has a multiple of 32
// threads, at most 1024. The order of a sum depends only on the block size.
#pragma once

#include <cstring>

#include "kernels/cuda/launcher.cuh"
#include "kernels/functors/reduction.h"

namespace poolgrad::kernels::cuda {

inline constexpr unsigned all_threads_of_warp = 0xffffffffu;
inline constexpr int threads_per_warp = 32;

/// Returns the value of lane `lane ^ lanes`. T is a number or a struct of whole 64-bit words.
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

/// Returns combine() of the values of `lanes` neighboring lanes, a power of two, in each lane. The butterfly gives all
/// lanes the same bits if combine() is commutative.
template <class Reduction, class T>
__device__ T warp_reduce(T value, int lanes = threads_per_warp) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = Reduction::combine(value, shuffle_xor(value, distance));
  return value;
}

/// Returns combine() of the values of `Threads` threads, a power of two, in each thread. The threads are a block; 32
/// threads are one warp.
template <class Reduction, int Threads, class T>
__device__ T block_reduce(T value) {
  static_assert(Threads % threads_per_warp == 0 && Threads <= 1024 && (Threads & (Threads - 1)) == 0);
  constexpr int warps = Threads / threads_per_warp;
  value = warp_reduce<Reduction>(value);
  if constexpr (warps > 1) {
    POOLGRAD_SHARED(T, partial, warps);
    const int warp = static_cast<int>(threadIdx.x) / threads_per_warp;
    const int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
    __syncthreads();  // all threads have read the previous values
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = warp_reduce<Reduction>(static_cast<T>(partial[lane % warps]), warps);
  }
  return value;
}

/// Exclusive prefix sum of a thread, and the total.
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

/// Prefix sum over `Threads` threads: a block; 32 threads are one warp.
template <int Threads, class Sum>
__device__ Prefix<Sum> block_prefix(Sum value) {
  Prefix<Sum> found = warp_prefix(value);
  if constexpr (Threads > threads_per_warp) {
    constexpr int warps = Threads / threads_per_warp;
    POOLGRAD_SHARED(Sum, totals, warps);
    const int warp = static_cast<int>(threadIdx.x) / threads_per_warp;
    __syncthreads();  // all threads have read the previous totals
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
