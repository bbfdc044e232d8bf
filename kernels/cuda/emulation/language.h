// The CUDA C++ language features that kernels use, for the host compiler, on the fibers of block.h. launcher.cuh
// includes it in place of the CUDA runtime header. Features missing here do not compile, on purpose.
#pragma once

#include <cstdint>
#include <utility>

#include "allocator/error.h"
#include "kernels/cuda/emulation/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define POOLGRAD_UNROLL
#define POOLGRAD_UNROLL_TWO
#define POOLGRAD_ROLLED
#define threadIdx (::poolgrad::emulation::here.thread)
#define blockIdx (::poolgrad::emulation::here.block)
#define blockDim (::poolgrad::emulation::here.block_size)
#define gridDim (::poolgrad::emulation::here.grid_size)

#define POOLGRAD_SHARED(T, name, count)        \
  const ::poolgrad::emulation::Shared<T> name( \
      ::poolgrad::emulation::shared_array(#name, sizeof(T), count, std::source_location::current()))
#define POOLGRAD_DYNAMIC_SHARED(T, name)       \
  const ::poolgrad::emulation::Shared<T> name( \
      ::poolgrad::emulation::dynamic_shared_array(#name, sizeof(T), std::source_location::current()))

namespace poolgrad::kernels::cuda {

using emulation::Shared;
using emulation::Where;

inline void __syncthreads(Where where = Where::current()) { emulation::block_barrier(where); }

/// Collectives of all lanes; the kernels use no others.
inline void check_mask(unsigned mask, const char* collective) {
  if (mask != 0xffffffffu) throw CudaError("[" + std::string(collective) + "] needs all lanes of the warp");
}
template <class T>
emulation::Lanes<T> all_lanes(unsigned mask, const char* collective, const T& own, Where where) {
  check_mask(mask, collective);
  return {collective, own, where};
}
inline void __syncwarp(unsigned mask = 0xffffffffu, Where where = Where::current()) {
  check_mask(mask, "__syncwarp");
  emulation::warp_barrier(where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = emulation::warp_size, Where where = Where::current()) {
  const int first = emulation::lane() / width * width;
  return all_lanes(mask, "__shfl_sync", value, where)[first + (from & (width - 1))];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = emulation::warp_size, Where where = Where::current()) {
  const int lane = emulation::lane(), other = lane ^ lanes;
  return all_lanes(mask, "__shfl_xor_sync", value, where)[other < (lane / width + 1) * width ? other : lane];
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = emulation::warp_size,
                   Where where = Where::current()) {
  const int lane = emulation::lane(), other = lane + static_cast<int>(by);
  return all_lanes(mask, "__shfl_down_sync", value, where)[other < (lane / width + 1) * width ? other : lane];
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = emulation::warp_size,
                 Where where = Where::current()) {
  const int lane = emulation::lane(), other = lane - static_cast<int>(by);
  return all_lanes(mask, "__shfl_up_sync", value, where)[other >= lane / width * width ? other : lane];
}
inline unsigned __ballot_sync(unsigned mask, bool vote, Where where = Where::current()) {
  const emulation::Lanes<bool> all = all_lanes(mask, "__ballot_sync", vote, where);
  unsigned votes = 0;
  for (int i = 0; i < emulation::warp_size; ++i) votes |= static_cast<unsigned>(all[i]) << i;
  return votes;
}
inline bool __any_sync(unsigned mask, bool vote, Where where = Where::current()) {
  return __ballot_sync(mask, vote, where) != 0;
}
inline bool __all_sync(unsigned mask, bool vote, Where where = Where::current()) {
  return __ballot_sync(mask, vote, where) == 0xffffffffu;
}

}  // namespace poolgrad::kernels::cuda
