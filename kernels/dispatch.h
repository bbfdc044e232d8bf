// The one place that decides what a kernel call does on each kind of device.
#pragma once

#include <cstdint>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

// How long a simulated device takes for a kernel: a roofline with a launch latency. Whole-number arithmetic on sizes,
// so equal work costs equal time everywhere.

/// Bytes read plus written, and floating-point operations.
struct Cost {
  double bytes = 0, operations = 0;
};

/// Nanoseconds on the simulated device: 4 us to launch, then 3.35 TB/s of memory or 50 Tflop/s, whichever is slower.
constexpr std::uint64_t simulated_nanoseconds(const Cost& cost) {
  constexpr double launch = 4000, bytes_per_nanosecond = 3350, operations_per_nanosecond = 50000;
  const double memory = cost.bytes / bytes_per_nanosecond, arithmetic = cost.operations / operations_per_nanosecond;
  return static_cast<std::uint64_t>(launch + (memory > arithmetic ? memory : arithmetic));
}

/// Every element of every view read or written once; views that broadcast count in full.
template <class... Views>
Cost traffic(const Views&... views) {
  return {
      (0.0 + ... + (views.data ? static_cast<double>(views.count()) * static_cast<double>(size_of(views.dtype)) : 0.0)),
      0};
}

/// True on the CPU: go on and compute. On sim: advances the device's clock by the cost and returns false. On CUDA:
/// throws a DeviceError that names the operator. Allocate workspaces before, so that sim requests the same memory.
bool runs_on_cpu(Stream stream, std::string_view op, const Cost& cost);

}  // namespace poolgrad::kernels
