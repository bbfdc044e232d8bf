#include "benchmarks/driver_copy.h"

#include <cuda_runtime_api.h>

#include <string>

#include "allocator/error.h"

namespace poolgrad {

bool has_driver_copy() { return true; }

void driver_copy(void* to, const void* from, std::size_t bytes) {
  const cudaError_t status = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr);
  if (status != cudaSuccess) throw CudaError(std::string("[cudaMemcpyAsync] ") + cudaGetErrorString(status));
}

}  // namespace poolgrad
