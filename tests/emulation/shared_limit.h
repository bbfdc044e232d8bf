// Shared memory limit of a kernel's launches. On a GPU it is state of the function, shared by all host threads.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace poolgrad::emulation {

/// Bytes per block that an emulated GPU reports; tests lower it.
inline std::int64_t shared_bytes_of_block = kernels::max_shared_bytes;

/// cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize); may also lower the limit.
void set_shared_limit(int device, const void* kernel, std::int64_t bytes);
/// Returns the last limit set; 0: none.
std::int64_t shared_limit(int device, const void* kernel);

/// Returns the bytes, static and dynamic, that a launch with `dynamic` bytes may use. The static bytes are known only
/// when it runs. Throws CudaError `[op] reason` if the launch would fail on a GPU.
std::int64_t most_shared_bytes(const char* op, int device, const void* kernel, std::int64_t dynamic);

}  // namespace poolgrad::emulation
