// parallel_for: the one way to run a host+device functor over [0, n): OpenMP ranges on the CPU, a grid-stride kernel on
// CUDA, nothing (but the clock) on sim. Ranges are fixed-size chunks, so that what a chunk computes never depends on
// the number of threads.
#pragma once

#include <cstdint>

namespace poolgrad::kernels {

/// Threads that kernels use on the CPU: POOLGRAD_THREADS, else OMP_NUM_THREADS, else the cores of the machine.
int num_threads();
/// Sets it for the process; throws ValueError below 1.
void set_num_threads(int threads);

/// Calls body(begin, end) for consecutive chunks of [0, n), each `chunk` long but the last; chunks run on several
/// threads. One thread where n <= chunk. An exception in a body is rethrown here.
template <class Body>
void parallel_ranges(std::int64_t n, std::int64_t chunk, const Body& body);

}  // namespace poolgrad::kernels

#include "kernels/parallel_impl.h"
