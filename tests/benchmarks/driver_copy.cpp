// On the emulated device, the copies of its driver.
#include "benchmarks/driver_copy.h"

#include "tests/emulation/device.h"

namespace poolgrad {

bool has_driver_copy() { return true; }

void driver_copy(void* to, const void* from, std::size_t bytes) { emulation::device(0).copy(0, to, from, bytes); }

}  // namespace poolgrad
