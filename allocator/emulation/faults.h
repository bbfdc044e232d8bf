// Memory of a device that is touched where, or when, it is not there: the program ends with a sentence that says who.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poolgrad::emulation {

/// From the first call on, accesses that the operating system refuses are told before they end the program, where they
/// are of a device's addresses. False where that cannot be.
bool handle_faults();

// With the mutex of the devices held.
/// These addresses are of a device.
void name_addresses(int device, std::uintptr_t begin, std::size_t bytes);
/// Those that begin there are nobody's any more.
void forget_addresses(std::uintptr_t begin);

}  // namespace poolgrad::emulation
