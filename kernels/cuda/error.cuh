// The one macro that checks calls of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "allocator/error.h"

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
