// Runs a host+device functor over [0, n): ranges of it on the CPU, nothing but the clock on sim. The same functors run
// on CUDA through kernels/cuda/launcher.cuh.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/dispatch.h"
#include "kernels/parallel.h"

namespace poolgrad::kernels {

/// Calls body(i) once for every i of [0, n), in any order and on several threads; body is a functor such as those of
/// pointwise.h. `cost` is what a simulated device is charged. Throws DeviceError for CUDA streams.
template <class Body>
void parallel_for(std::string_view op, Stream stream, std::int64_t n, const Cost& cost, const Body& body) {
  constexpr std::int64_t range_size = 4096;
  if (!runs_on_cpu(stream, op, cost)) return;
  parallel_ranges(n, range_size, [&body](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace poolgrad::kernels
