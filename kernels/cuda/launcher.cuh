// How a kernel is launched, and the few calls of the runtime that kernels need beside it; here is the only <<<>>>.
// Under nvcc this is CUDA; the host compiler takes the same text for the emulated device (kernels/cuda/emulation).
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

/// Bytes of arguments that every architecture takes.
inline constexpr std::size_t max_argument_bytes = 4096;

/// POOLGRAD_SYNC=1: every launch, product and copy is waited for, so that an error is that of its own operator.
inline bool synchronous() {
  static const bool wanted = switched_on("POOLGRAD_SYNC");
  return wanted;
}

/// Throws the IndexError of an index that kernels of the device have found outside of its range, and forgets it. They
/// write it to memory of the host; whoever waits for the device asks (indexing.cu).
void throw_index_fault(int device);

#if defined(__CUDACC__)

/// Before a loop whose index must be known where registers are named by it.
#define POOLGRAD_UNROLL _Pragma("unroll")
#define POOLGRAD_UNROLL_TWO _Pragma("unroll 2")
/// Before a loop that would become much code.
#define POOLGRAD_ROLLED _Pragma("unroll 1")

/// Throws CudaError for anything but cudaSuccess, after clearing the error that the runtime would report again.
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

/// Memory of a block: POOLGRAD_SHARED(float, partial, 32) declares it, partial[i] uses it.
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
/// As many elements as the launch has bytes of shared memory for.
#define POOLGRAD_DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(1024) unsigned char poolgrad_dynamic_shared[]; \
  const ::poolgrad::kernels::cuda::Shared<T> name(reinterpret_cast<T*>(poolgrad_dynamic_shared))

/// Stream ids are the driver's handles; 0 is the default stream.
inline cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream.id); }

/// Whether what is queued on the stream now is recorded, and not run.
inline bool is_recorded(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaStreamIsCapturing(native(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

/// Memory of the host that kernels of a device may write to.
inline void* shared_with_host(int device, std::size_t bytes) {
  void* memory = nullptr;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(device));
  POOLGRAD_CUDA_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
  return memory;
}
/// Of a flag in such memory. Whoever finds it set finds what the thread that has set it wrote before, the host too.
__device__ inline void set_flag(int* flag) {
  __threadfence_system();
  *static_cast<volatile int*>(flag) = 1;
}
__device__ inline bool is_set(const int* flag) { return *static_cast<const volatile int*>(flag) != 0; }

/// Waits for an operator that was queued just now: an error that is met is its own.
inline void wait_for(const char* op, Stream stream) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  check(cudaStreamSynchronize(native(stream)), op, "");
  throw_index_fault(stream.device.index);
}

/// Work queued on `later` from now on waits for what is queued on `earlier` now, a stream of another device.
inline void order(Stream later, Stream earlier) {
  cudaEvent_t event = nullptr;
  POOLGRAD_CUDA_CHECK(cudaSetDevice(earlier.device.index));
  POOLGRAD_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const cudaError_t recorded = cudaEventRecord(event, native(earlier));
  POOLGRAD_CUDA_CHECK(cudaSetDevice(later.device.index));
  const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(native(later), event, 0) : recorded;
  cudaEventDestroy(event);  // once it is done
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

/// Index of the device that the memory is of; -1: of the host. Touches no device but the stream's.
inline int device_of(Stream stream, const void* address) {
  cudaPointerAttributes attributes{};
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  POOLGRAD_CUDA_CHECK(cudaPointerGetAttributes(&attributes, address));
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

/// Sets how much dynamic shared memory a kernel may be launched with on a device, by whichever thread.
inline void set_shared_limit(int device, const void* kernel, std::int64_t bytes) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(device));
  POOLGRAD_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

/// How much shared memory a block may have, static and dynamic.
inline std::int64_t shared_bytes_of_block(int device) {
  int bytes = 0;
  POOLGRAD_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

/// The first number of the device's compute capability.
inline int capability_of(int device) {
  int major = 0;
  POOLGRAD_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

/// The driver itself finds out where an address is not the device's.
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
  check(cudaGetLastError(), op, synchronous() ? "" : ", here or in work before: POOLGRAD_SYNC=1 tells");
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

/// Kernels could read memory of the host here, on a GPU they cannot.
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

/// Returns once the work queued on the stream is done. Throws CudaError of any work before, IndexError, and DeviceError
/// where the stream is being recorded.
inline void synchronize(Stream stream) {
  if (is_recorded(stream)) throw DeviceError("[synchronize] the stream is being recorded");
  wait_for("synchronize", stream);
}

/// Queues a copy of bytes to another device, on a stream of the one that has them. Memory that is mapped for one device
/// only is copied by this call alone, through the host where there is no other way.
inline void copy_to_device(Stream stream, void* to, int device, const void* from, std::size_t bytes) {
  queue_copy_to_device(stream, to, device, from, bytes);
  if (synchronous()) wait_for("copy", stream);
}

/// Queues a copy of bytes, each side memory of the stream's device or of the host. Memory of the host that is pageable
/// has been read, or written, when this returns; memory of PinnedMemory is read, or written, in stream order.
inline void copy_bytes(Stream stream, void* to, const void* from, std::size_t bytes) {
  queue_copy(stream, to, from, bytes);
  if (synchronous()) wait_for("copy", stream);
}

/// Lets a kernel be launched with so many bytes of dynamic shared memory. What is set holds for all launches of the
/// kernel on the device, those of other threads too: it is only ever raised. Without, static and dynamic memory
/// together stay below 48 KiB; as the static part is not known here, the first launch with a dynamic one sets 48 KiB,
/// and only launches of more than any before set anything after that.
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

/// Queues a kernel on a stream; its arguments are copied. Throws ValueError, `[op] reason: the whole shape`, where a
/// GPU would refuse the launch (kernels/launch.h), and CudaError where it fails: of a launch before, too, unless
/// POOLGRAD_SYNC=1.
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

/// This thread among all of a one-dimensional grid, and how many there are: where a grid-stride loop begins, and its
/// step.
__device__ inline std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_threads() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

}  // namespace poolgrad::kernels::cuda
