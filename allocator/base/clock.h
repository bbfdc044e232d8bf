// The virtual clock of simulated devices.
#pragma once

#include <cstdint>

#include "allocator/device.h"

namespace poolgrad {

/// `nanoseconds` of work pass on a simulated device. Throws DeviceError for any other device.
void advance_clock(Device device, std::uint64_t nanoseconds);

/// Nanoseconds that have passed on a simulated device since it was made. Throws DeviceError for any other device.
std::uint64_t device_clock(Device device);

}  // namespace poolgrad
