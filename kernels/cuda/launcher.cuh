// Kernel launches and the CUDA runtime calls that kernels need; the only <<<>>> of the project. Under nvcc this is
// CUDA; the host compiler builds the same text for the emulated device (kernels/cuda/emulation).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <atomic>
#include <cstring>

#include "allocator/emulation/device.h"
#include "kernels/cuda/emulation/language.h"
#include "kernels/cuda/emulation/shared_limit.h"
#endif

#include "allocator/base/environment.h"
#include "allocator/error.h"
#include "allocator/stream.h"
#include "kernels/launch.h"

namespace poolgrad::kernels::cuda {

/// Bytes of kernel arguments that every architecture accepts.
inline constexpr std::size_t max_argument_bytes = 4096;

/// POOLGRAD_SYNC=1: every launch, product and copy is synchronous, so that an error names its own operator.
inline bool synchronous() {
  static const bool wanted = switched_on("POOLGRAD_SYNC");
  return wanted;
}

/// Throws IndexError for an out-of-range index that a kernel of the device found, and clears it. Kernels write the
/// fault to host memory; each synchronization checks it (indexing.cu).
void throw_index_fault(int device);

#if defined(__CUDACC__)

/// For loops that must unroll because their index selects registers.
#define POOLGRAD_UNROLL _Pragma("unroll")
#define POOLGRAD_UNROLL_TWO _Pragma("unroll 2")
/// For loops that must not unroll, to limit the code size.
#define POOLGRAD_ROLLED _Pragma("unroll 1")

/// Throws CudaError unless status is cudaSuccess, and clears the runtime's stored error first.
inline void check(cudaError_t status, const char* call, const std::string& where) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError("[" + std::string(call) + "] " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status) +
                  where);
}
inline void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status != cudaSuccess) check(status, call, " at " + std::string(file) + ":" + std::to_string(line));
}
#define POOLGRAD_CUDA_CHECK(call) ::poolgrad::kernels::cuda::check((call), #call, __FILE__, __LINE__)

/// Shared memory of a block: POOLGRAD_SHARED(float, partial, 32) declares it, partial[i] accesses it.
template <class T>
class Shared {
 public:
  explicit __device__ Shared(T* data) : data_(data) {}
  template <class I>
  __device__ T& operator[](I index) const {
    return data_[index];
  }

 private:
  T* data_;
};
#define POOLGRAD_SHARED(T, name, count) \
  __shared__ T name##_memory[count];    \
  const ::poolgrad::kernels::cuda::Shared<T> name(name##_memory)
/// Dynamic shared memory: as many elements as the launch provides bytes for.
#define POOLGRAD_DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(1024) unsigned char poolgrad_dynamic_shared[]; \
  const ::poolgrad::kernels::cuda::Shared<T> name(reinterpret_cast<T*>(poolgrad_dynamic_shared))

/// Stream ids are driver handles; 0 is the default stream.
inline cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream.id); }

/// Returns whether a graph capture records the stream's work instead of running it.
inline bool is_recorded(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaStreamIsCapturing(native(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Allocates host memory that kernels of a device can write.
inline void* shared_with_host(int device, std::size_t bytes) {
  void* memory = nullptr;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(device));
  POOLGRAD_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  return memory;
}
/// Sets a flag in such memory. A reader that finds it set, on the host too, also sees the thread's earlier writes.
__device__ inline void set_flag(int* flag) {
  __threadfence_system();
  *static_cast<volatile int*>(flag) = 1;
}
__device__ inline bool is_set(const int* flag) { return *static_cast<const volatile int*>(flag) != 0; }

/// Waits for an operator queued just now, so that an error belongs to it.
inline void wait_for(const char* op, Stream stream) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  check(cudaStreamSynchronize(native(stream)), op, "");
  throw_index_fault(stream.device.index);
}

/// Makes later work on stream `later` wait for the work queued so far on `earlier`, a stream of another device.
inline void order(Stream later, Stream earlier) {
  cudaEvent_t event = nullptr;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(earlier.device.index));
  POOLGRAD_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const cudaError_t recorded = cudaEventRecord(event, native(earlier));
  POOLGRAD_CUDA_CHECK(cudaSetDevice(later.device.index));
  const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(native(later), event, 0) : recorded;
  cudaEventDestroy(event);  // deferred by the driver until the event is done
  POOLGRAD_CUDA_CHECK(waits);
}

inline void queue_copy_to_device(Stream stream, void* to, int device, const void* from, std::size_t bytes) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaMemcpyPeerAsync(to, device, from, stream.device.index, bytes, native(stream)));
}

inline void queue_copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)));
}

/// Returns the device index of an address, or -1 for host memory. Initializes no device except the stream's.
inline int device_of(Stream stream, const void* address) {
  cudaPointerAttributes attributes{};
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

/// Sets the maximum dynamic shared memory of a kernel on a device.
inline void set_shared_limit(int device, const void* kernel, std::int64_t bytes) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(device));
  POOLGRAD_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

/// Returns the shared memory limit of a block in bytes, static and dynamic.
inline std::int64_t shared_bytes_of_block(int device) {
  int bytes = 0;
  POOLGRAD_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

/// Returns the major compute capability of the device.
inline int capability_of(int device) {
  int major = 0;
  POOLGRAD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

/// On a GPU the driver detects an address outside device memory.
inline void check_operand(std::string_view, Stream, const void*) {}

template <class... Parameters>
void start(const char* op, void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
           const Parameters&... arguments) {
  const auto extent = [](const Extent& e) {
    return dim3(static_cast<unsigned>(e.x), static_cast<unsigned>(e.y), static_cast<unsigned>(e.z));
  };
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  kernel<<<extent(shape.grid), extent(shape.block), static_cast<std::size_t>(shape.shared_bytes), native(stream)>>>(
      arguments...);
  check(cudaGetLastError(), op,
        synchronous() ? "" : ", in this kernel or in earlier work; POOLGRAD_SYNC=1 finds the kernel");
}

#else

inline bool is_recorded(Stream stream) { return emulation::device(stream.device.index).is_recorded(stream.id); }

inline void* shared_with_host(int, std::size_t bytes) { return std::malloc(bytes); }
inline void set_flag(int* flag) { std::atomic_ref(*flag).store(1, std::memory_order_release); }
inline bool is_set(int* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire) != 0; }

inline void wait_for(const char* op, Stream stream) {
  emulation::device(stream.device.index).synchronize(stream.id, op);
  throw_index_fault(stream.device.index);
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

#endif

/// Waits for the work queued on the stream. Throws CudaError of earlier work, IndexError, and DeviceError if the stream
/// is being recorded.
inline void synchronize(Stream stream) {
  if (is_recorded(stream)) throw DeviceError("[synchronize] the stream is being recorded");
  wait_for("synchronize", stream);
}

/// Queues a copy to another device on a stream of the source's device. Supports memory mapped for one device only; the
/// driver copies it through the host if necessary.
inline void copy_to_device(Stream stream, void* to, int device, const void* from, std::size_t bytes) {
  queue_copy_to_device(stream, to, device, from, bytes);
  if (synchronous()) wait_for("copy", stream);
}

/// Queues a copy; each side is memory of the stream's device or of the host. Pageable host memory has been read or
/// written on return. PinnedMemory is read or written in stream order.
inline void copy_bytes(Stream stream, void* to, const void* from, std::size_t bytes) {
  queue_copy(stream, to, from, bytes);
  if (synchronous()) wait_for("copy", stream);
}

/// Raises a kernel's limit of dynamic shared memory on a device, for launches of all threads; it never drops. By
/// default static and dynamic memory together stay below 48 KiB. The static part is unknown here, so the first dynamic
/// launch sets 48 KiB. Later calls act only on larger requests.
inline void allow_shared_bytes(int device, const void* kernel, std::int64_t bytes) {
  static auto& mutex = *new std::mutex;
  static auto& limits = *new std::map<std::pair<int, const void*>, std::int64_t>;
  const std::lock_guard lock(mutex);
  std::int64_t& limit = limits[{device, kernel}];
  if (bytes <= limit) return;
  const std::int64_t raised = std::max(bytes, large_shared_bytes);
  set_shared_limit(device, kernel, raised);
  limit = raised;
}

/// Queues a kernel on a stream and copies its arguments. Throws ValueError, `[op] reason: the whole shape`, for a
/// launch that a GPU would refuse (kernels/launch.h). Throws CudaError on failure; without POOLGRAD_SYNC=1 it may stem
/// from an earlier launch.
template <class... Parameters>
void launch(const char* op, void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
            const std::type_identity_t<std::remove_cvref_t<Parameters>>&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "arguments are copied as bytes");
  static_assert((std::size_t{0} + ... + ((sizeof(Parameters) + 15) / 16 * 16)) <= max_argument_bytes);
  check_launch(op, shape);
  if (shape.shared_bytes > 0)
    allow_shared_bytes(stream.device.index, reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  start<Parameters...>(op, kernel, shape, stream, arguments...);
  if (synchronous()) wait_for(op, stream);
}

/// Index of this thread in a one-dimensional grid, and the number of threads: start and step of a grid-stride loop.
__device__ inline std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_threads() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

}  // namespace poolgrad::kernels::cuda
