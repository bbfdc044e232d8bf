// What the threads of a warp or of a block find together. Every thread of the block calls; a block has a multiple of 32
// threads, at most 1024. Sums are taken in one order for a size of block, whatever runs first.
#pragma once

#include "kernels/cuda/launcher.cuh"
#include "kernels/definition/reduction.h"

namespace poolgrad::kernels::cuda {

inline constexpr unsigned all_threads_of_warp = 0xffffffffu;
inline constexpr int threads_per_warp = 32;

/// combine() of the values of all lanes, in each lane: a butterfly, the same bits in every lane where combine() is
/// commutative.
template <class Reduction, class T>
__device__ T warp_reduce(T value) {
  for (int lanes = threads_per_warp / 2; lanes > 0; lanes /= 2)
    value = Reduction::combine(value, __shfl_xor_sync(all_threads_of_warp, value, lanes));
  return value;
}

/// combine() of the values of all threads, in each thread. Blocks have `Threads` threads.
template <class Reduction, int Threads, class T>
__device__ T block_reduce(T value) {
  static_assert(Threads % threads_per_warp == 0 && Threads <= 1024);
  constexpr int warps = Threads / threads_per_warp;
  value = warp_reduce<Reduction>(value);
  if constexpr (warps > 1) {
    POOLGRAD_SHARED(T, partial, warps);
    const int warp = static_cast<int>(threadIdx.x) / threads_per_warp;
    const int lane = static_cast<int>(threadIdx.x) % threads_per_warp;
    __syncthreads();  // who came here before has read what it found
    if (lane == 0) partial[warp] = value;
    __syncthreads();
    value = lane < warps ? static_cast<T>(partial[lane]) : Reduction::template identity<T>;
    value = warp_reduce<Reduction>(value);
  }
  return value;
}

}  // namespace poolgrad::kernels::cuda
