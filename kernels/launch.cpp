#include "kernels/launch.h"

#include <algorithm>
#include <string>

#include "allocator/error.h"

namespace poolgrad::kernels {
namespace {

std::string describe(const Extent& extent) {
  return "(" + std::to_string(extent.x) + ", " + std::to_string(extent.y) + ", " + std::to_string(extent.z) + ")";
}

bool within(const Extent& extent, std::int64_t x, std::int64_t y, std::int64_t z) {
  return extent.x >= 1 && extent.x <= x && extent.y >= 1 && extent.y <= y && extent.z >= 1 && extent.z <= z;
}

}  // namespace

void check_launch(std::string_view op, const LaunchShape& shape) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError("[" + std::string(op) + "] " + reason + ": grid " + describe(shape.grid) + ", block " +
                     describe(shape.block) + ", " + std::to_string(shape.shared_bytes) + " bytes of shared memory");
  };
  const Extent& block = shape.block;
  if (!within(block, max_threads_per_block, max_threads_per_block, max_block_z))
    refuse("a block is at least 1 and at most 1024 x 1024 x 64 threads");
  if (block.x * block.y * block.z > max_threads_per_block) refuse("a block has at most 1024 threads");
  if (!within(shape.grid, max_grid_x, max_grid_yz, max_grid_yz))
    refuse("a grid is at least 1 and at most 2147483647 x 65535 x 65535 blocks");
  if (shape.shared_bytes < 0 || shape.shared_bytes > max_shared_bytes)
    refuse("a block has at most 232448 bytes of shared memory");
}

LaunchShape grid_stride_shape(std::int64_t n) {
  constexpr std::int64_t threads = 256, enough_blocks = 4096;
  const std::int64_t blocks = (n - 1) / threads + 1;
  return {{std::min(blocks, enough_blocks)}, {threads}, 0};
}

}  // namespace poolgrad::kernels
