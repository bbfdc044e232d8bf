// The rules that every kernel launch keeps, checked in the same way on a GPU, under emulation and on sim. Host code
// that needs no CUDA.
#pragma once

#include <cstdint>
#include <string_view>

namespace poolgrad::kernels {

struct Extent {
  std::int64_t x = 1, y = 1, z = 1;
};

/// Blocks of a grid, threads of a block, and bytes of dynamic shared memory per block.
struct LaunchShape {
  Extent grid;
  Extent block;
  std::int64_t shared_bytes = 0;
};

/// Limits of every architecture that poolgrad is built for (CUDA C++ Programming Guide, "Compute Capabilities").
inline constexpr std::int64_t max_threads_per_block = 1024, max_block_z = 64;
inline constexpr std::int64_t max_grid_x = 2147483647, max_grid_yz = 65535;
inline constexpr std::int64_t max_shared_bytes = 227 * 1024;

/// From here on, a kernel must first raise its limit of dynamic shared memory (cudaFuncSetAttribute): exactly 48 KiB of
/// static and dynamic memory together already fail without.
inline constexpr std::int64_t large_shared_bytes = 48 * 1024;

/// Throws ValueError, `[op] reason: the whole shape`, if a GPU would refuse the launch.
void check_launch(std::string_view op, const LaunchShape& shape);

/// A shape for a grid-stride loop over n > 0 elements: enough blocks to fill a large GPU, never one per element, so
/// that no limit of the grid depends on n.
LaunchShape grid_stride_shape(std::int64_t n);

}  // namespace poolgrad::kernels
