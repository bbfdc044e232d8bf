// The CUDA runtime calls and the language that kernels need; the only <<<>>> of the project. Tests compile the kernels
// for a device on the host: their include path finds another header of this name first (tests/emulation).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "kernels/functors/host_device.h"
#include "kernels/launch.h"

namespace poolgrad::kernels::cuda {

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

/// Waits for the work queued on the stream. Throws the CudaError of that work, named after `op`.
inline void wait_for_work(const char* op, Stream stream) {
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  check(cudaStreamSynchronize(native(stream)), op, "");
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

/// Tests check here that an address is memory of the device; a driver detects it.
inline void check_operand(std::string_view, Stream, const void*) {}
/// Tests check here that an address is aligned to its type; a GPU detects it.
template <class Whole>
POOLGRAD_HD void check_aligned(const char*, const void*) {}

/// The body of map_elements(), as the compiler sees it.
template <class T, class Body>
using MapBody = Body;

/// Queues a kernel whose shape has been checked.
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

}  // namespace poolgrad::kernels::cuda
