// Reports invalid accesses to emulated device memory before they end the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poolgrad::emulation {

/// Installs a handler that reports faults at device addresses before they end the program. Returns false if that is
/// impossible.
bool handle_faults();

// Both require the devices' mutex.
/// Registers the addresses of a device.
void name_addresses(int device, std::uintptr_t begin, std::size_t bytes);
/// Unregisters the range that begins there.
void forget_addresses(std::uintptr_t begin);

}  // namespace poolgrad::emulation
