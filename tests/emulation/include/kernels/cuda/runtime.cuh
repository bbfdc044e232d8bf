// The device of the kernels on the host, in place of kernels/cuda/runtime.cuh: the features of CUDA C++ that kernels
// use, on the fibers of block.h, and the runtime calls. Features missing here do not compile, on purpose.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "kernels/launch.h"
#include "tests/emulation/block.h"
#include "tests/emulation/device.h"
#include "tests/emulation/shared_limit.h"

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

inline bool is_recorded(Stream stream) { return emulation::device(stream.device.index).is_recorded(stream.id); }

inline void* shared_with_host(int, std::size_t bytes) { return std::malloc(bytes); }
inline void set_flag(int* flag) { std::atomic_ref(*flag).store(1, std::memory_order_release); }
inline bool is_set(int* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire) != 0; }

inline void wait_for_work(const char* op, Stream stream) {
  emulation::device(stream.device.index).synchronize(stream.id, op);
}

inline void order(Stream later, Stream earlier) {
  emulation::device(later.device.index).wait(later.id, emulation::device(earlier.device.index), earlier.id);
}

inline void queue_copy_to_device(Stream stream, void* to, int device, const void* from, std::size_t bytes) {
  emulation::device(stream.device.index)
      .enqueue(
          "cudaMemcpyPeerAsync", stream.id, [=] { std::memcpy(to, from, bytes); }, &emulation::device(device));
}

inline void queue_copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  emulation::device(stream.device.index).copy(stream.id, to, from, bytes);
}

inline int device_of(Stream, const void* address) {
  const emulation::Device* owner = emulation::owner_of(address);
  return owner ? owner->index() : -1;
}

/// The emulated device could read host memory, a GPU cannot; so the check is explicit.
inline void check_operand(std::string_view op, Stream stream, const void* address) {
  const int owner = device_of(stream, address);
  if (owner == stream.device.index) return;
  if (owner >= 0 && emulation::device(owner).is_open_to(stream.device.index, address)) return;
  throw DeviceError("[" + std::string(op) + "] an operand is in memory of " +
                    (owner < 0 ? "the host" : "cuda:" + std::to_string(owner)) + ", not of " +
                    to_string(stream.device));
}

template <class Whole>
void check_aligned(const char* access, const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(Whole) != 0)
    emulation::refuse_access(access, address, sizeof(Whole), alignof(Whole));
}

/// The host calls a body through a pointer, so map_elements() is compiled once per T, not per operator.
template <class T>
class AnyBody {
 public:
  template <class Body>
  explicit AnyBody(const Body& body)
      : call_([](const std::byte* bytes, std::int64_t i, const T* in, T* out) {
          (*reinterpret_cast<const Body*>(bytes))(i, in, out);
        }) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= sizeof(bytes_) && alignof(Body) <= 16);
    std::memcpy(bytes_, &body, sizeof(Body));
  }
  void operator()(std::int64_t i, const T* in, T* out) const { call_(bytes_, i, in, out); }

 private:
  alignas(16) std::byte bytes_[128] = {};
  void (*call_)(const std::byte* bytes, std::int64_t i, const T* in, T* out);
};
template <class T, class Body>
using MapBody = AnyBody<T>;

using emulation::set_shared_limit;
inline int capability_of(int) { return 9; }
inline std::int64_t shared_bytes_of_block(int) { return emulation::shared_bytes_of_block; }

template <class... Parameters>
void start(const char* op, void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
           const Parameters&... arguments) {
  emulation::Device& device = emulation::device(stream.device.index);
  device.take_failure();
  const std::int64_t most_shared =
      emulation::most_shared_bytes(op, stream.device.index, reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  const std::uint64_t seed = device.next_seed();
  device.enqueue(op, stream.id, [=, copies = std::tuple<Parameters...>(arguments...)] {
    emulation::run_grid(
        op, shape, seed, [&] { std::apply(kernel, copies); }, most_shared);
  });
}

}  // namespace poolgrad::kernels::cuda
