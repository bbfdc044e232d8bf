// Rules for every kernel launch, checked alike on a GPU, under emulation and on simulated devices. Host code without
// CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "allocator/base/environment.h"
#include "allocator/error.h"
#include "allocator/stream.h"

namespace poolgrad::kernels {

struct Extent {
  std::int64_t x = 1, y = 1, z = 1;

  bool within(const Extent& most) const {
    return x >= 1 && x <= most.x && y >= 1 && y <= most.y && z >= 1 && z <= most.z;
  }
  std::string describe() const {
    return std::string("(") + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
  }
};

/// Blocks per grid, threads per block, and bytes of dynamic shared memory per block.
struct LaunchShape {
  Extent grid;
  Extent block;
  std::int64_t shared_bytes = 0;
};

/// Limits of every architecture that poolgrad is built for (CUDA C++ Programming Guide, "Compute Capabilities").
inline constexpr std::int64_t max_threads_per_block = 1024, max_block_z = 64;
inline constexpr std::int64_t max_grid_x = 2147483647, max_grid_yz = 65535;
inline constexpr std::int64_t max_shared_bytes = 227 * 1024;

/// From this size on, a kernel must first raise its limit of dynamic shared memory (cudaFuncSetAttribute). A static and
/// dynamic sum of exactly 48 KiB already fails without it.
inline constexpr std::int64_t large_shared_bytes = 48 * 1024;

/// Throws ValueError, `[op] reason: the whole shape`, if a GPU would reject the launch.
inline void check_launch(std::string_view op, const LaunchShape& shape) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError("[" + std::string(op) + "] " + reason + ": grid " + shape.grid.describe() + ", block " +
                     shape.block.describe() + ", " + std::to_string(shape.shared_bytes) + " bytes of shared memory");
  };
  const Extent& block = shape.block;
  if (!block.within({max_threads_per_block, max_threads_per_block, max_block_z}))
    refuse("a block is at least 1 and at most 1024 x 1024 x 64 threads");
  if (block.x * block.y * block.z > max_threads_per_block) refuse("a block has at most 1024 threads");
  if (!shape.grid.within({max_grid_x, max_grid_yz, max_grid_yz}))
    refuse("a grid is at least 1 and at most 2147483647 x 65535 x 65535 blocks");
  if (shape.shared_bytes < 0 || shape.shared_bytes > max_shared_bytes)
    refuse("a block has at most 232448 bytes of shared memory");
}

/// POOLGRAD_SYNC=1: every launch, product and copy is synchronous, so that an error names its own operator.
inline bool synchronous() {
  static const bool wanted = switched_on("POOLGRAD_SYNC");
  return wanted;
}

/// Waits for all work queued on the stream. Throws the CudaError or IndexError of that work.
void synchronize(Stream stream);

/// Returns a shape for a grid-stride loop over n > 0 elements: enough blocks to fill a large GPU. The grid never grows
/// with n, so no grid limit depends on n.
inline LaunchShape grid_stride_shape(std::int64_t n) {
  constexpr std::int64_t threads = 256, enough_blocks = 4096;
  return {{std::min((n - 1) / threads + 1, enough_blocks)}, {threads}, 0};
}

}  // namespace poolgrad::kernels
