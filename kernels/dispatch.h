// The one place that decides what a kernel call does on each kind of device.
#pragma once

#include <string_view>

#include "allocator/stream.h"
#include "kernels/sim_cost.h"

namespace poolgrad::kernels {

/// True on the CPU: go on and compute. On sim: advances the device's clock by the cost and returns false. On CUDA:
/// throws a DeviceError that names the operator. Allocate workspaces before, so that sim requests the same memory.
bool runs_on_cpu(Stream stream, std::string_view op, const Cost& cost);

}  // namespace poolgrad::kernels
