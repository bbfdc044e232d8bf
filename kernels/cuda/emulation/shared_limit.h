// How much shared memory launches of a kernel may ask for: on a GPU a state of the function, which whoever sets it sets
// for all threads of the host.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace poolgrad::emulation {

/// What a block of an emulated GPU may have, by its own account; tests let it be less.
inline std::int64_t shared_bytes_of_block = kernels::max_shared_bytes;

/// cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize): also lowers what was set before.
void set_shared_limit(int device, const void* kernel, std::int64_t bytes);
/// What was set last; 0: nothing.
std::int64_t shared_limit(int device, const void* kernel);

/// For a launch with `dynamic` bytes: how many it may have with the static ones, which are known once it runs. Throws
/// CudaError `[op] reason` where the launch would fail on a GPU.
std::int64_t most_shared_bytes(const char* op, int device, const void* kernel, std::int64_t dynamic);

}  // namespace poolgrad::emulation
