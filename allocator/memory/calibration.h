// Measures what each call to a CUDA driver costs, for the simulator's latency tables.
#pragma once

#include "allocator/memory/cuda_driver.h"
#include "allocator/memory/latency.h"

namespace poolgrad {

struct CalibrationOptions {
  int repetitions = 50;  // of each call and size; medians are taken
  /// The sizes whose difference gives the cost of each MiB; multiples of the driver's granularity.
  std::size_t small_bytes = std::size_t{2} << 20;
  std::size_t large_bytes = std::size_t{64} << 20;
};

/// The device must be idle but for this. Uses 2 x large_bytes at most and gives all of it back. Throws OutOfMemoryError
/// if the device does not have that.
LatencyTable calibrate(CudaDriver& driver, const CalibrationOptions& options = {});

}  // namespace poolgrad
