// Launches a functor over [0, n) on a GPU: the twin of parallel_ranges() on the CPU. And the one macro that checks
// calls of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "kernels/launch.h"

namespace poolgrad::kernels::cuda {

/// Throws CudaError for anything but cudaSuccess, after clearing the error that the runtime would report again.
inline void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError("[" + std::string(call) + "] " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status) +
                  " at " + file + ":" + std::to_string(line));
}

}  // namespace poolgrad::kernels::cuda

#define POOLGRAD_CUDA_CHECK(call) ::poolgrad::kernels::cuda::check((call), #call, __FILE__, __LINE__)

namespace poolgrad::kernels::cuda {

/// Calls body(i) for every i of [0, n), one thread each, as often around as it takes.
template <class Body>
__global__ void for_each_index(std::int64_t n, Body body) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) body(i);
}

/// Stream ids are the driver's handles; 0 is the default stream.
inline cudaStream_t native(Stream stream) { return reinterpret_cast<cudaStream_t>(stream.id); }

/// After each launch: its error, and with POOLGRAD_SYNC=1 also those of the kernel itself.
inline void check_launched(Stream stream) {
  POOLGRAD_CUDA_CHECK(cudaGetLastError());
  static const bool synchronous = [] {
    const char* text = std::getenv("POOLGRAD_SYNC");
    return text != nullptr && std::string_view(text) == "1";
  }();
  if (synchronous) POOLGRAD_CUDA_CHECK(cudaStreamSynchronize(native(stream)));
}

/// Queues body(i) for every i of [0, n) on `stream`; n == 0 is no launch. Body is copied to the device. Throws
/// CudaError if the launch fails.
template <class Body>
void parallel_for(std::string_view op, Stream stream, std::int64_t n, const Body& body) {
  if (n <= 0) return;
  const LaunchShape shape = grid_stride_shape(n);
  check_launch(op, shape);
  POOLGRAD_CUDA_CHECK(cudaSetDevice(stream.device.index));
  for_each_index<<<static_cast<unsigned>(shape.grid.x), static_cast<unsigned>(shape.block.x), 0, native(stream)>>>(
      n, body);
  check_launched(stream);
}

}  // namespace poolgrad::kernels::cuda
