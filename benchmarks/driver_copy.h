// The driver's copy between two places on a GPU, as a reference for kernels.
#pragma once

#include <cstddef>

namespace poolgrad {

/// Returns false in builds without CUDA.
bool has_driver_copy();
/// Queues the copy on the default stream of the current device.
void driver_copy(void* to, const void* from, std::size_t bytes);

}  // namespace poolgrad
