#include "kernels/dispatch.h"

#include <string>

#include "allocator/base/clock.h"
#include "allocator/error.h"

namespace poolgrad::kernels {

bool runs_on_cpu(Stream stream, std::string_view op, const Cost& cost) {
  switch (stream.device.type) {
    case DeviceType::cpu: return true;
    case DeviceType::sim: advance_clock(stream.device, simulated_nanoseconds(cost)); return false;
    default: throw DeviceError("[" + std::string(op) + "] has no CUDA kernel in this build");
  }
}

}  // namespace poolgrad::kernels
