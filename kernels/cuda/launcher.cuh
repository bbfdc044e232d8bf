// Kernel launches, checked by the rules of kernels/launch.h; runtime.cuh provides the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "kernels/cuda/runtime.cuh"
#include "kernels/launch.h"

namespace poolgrad::kernels::cuda {

/// Bytes of kernel arguments that every architecture accepts.
inline constexpr std::size_t max_argument_bytes = 4096;

/// Throws IndexError for an out-of-range index that a kernel of the device found, and clears it. Kernels write the
/// fault to host memory; each synchronization checks it (indexing.cu).
void throw_index_fault(int device);

/// Waits for an operator queued just now, so that an error belongs to it.
inline void wait_for(const char* op, Stream stream) {
  wait_for_work(op, stream);
  throw_index_fault(stream.device.index);
}

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
