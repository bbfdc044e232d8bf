// The driver's own copy from one place on a GPU to another: what kernels are held against.
#pragma once

#include <cstddef>

namespace poolgrad {

/// False in builds without CUDA.
bool has_driver_copy();
/// Queues it on the default stream of the current device.
void driver_copy(void* to, const void* from, std::size_t bytes);

}  // namespace poolgrad
