#include "attention/hierarchical_block_sparse.h"

#include <string>

#include "allocator/error.h"

namespace poolgrad::attention {

namespace {

constexpr std::int64_t any_distance = -1;
constexpr std::size_t max_levels = 4;

void check(const HierarchyLevel& level) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError("[hierarchical_block_sparse] " + reason + ": stride " + std::to_string(level.stride) +
                     ", window " + std::to_string(level.window) + ", block " + std::to_string(level.block));
  };
  if (level.block < 16 || level.block % 16 != 0) refuse("the block must be a positive multiple of 16");
  if (level.stride < level.block || level.stride % level.block != 0)
    refuse("the stride must be a positive multiple of the block");
  if (level.window != any_distance && level.window < level.block) refuse("the window must be -1 or at least the block");
}

Pattern pattern_of(const HierarchyLevel& level) {
  return Pattern::spaced_blocks(level.block, level.stride / level.block,
                                level.window == any_distance ? Pattern::unbounded : level.window / level.block / 2);
}

}  // namespace

std::vector<HierarchyLevel> default_hierarchy() { return {{64, 256, 64}, {256, 1024, 128}, {1024, any_distance, 256}}; }

HierarchicalBlockSparse::HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels, const CoreOptions& options)
    : BlockSparseCore(options), levels_(levels) {
  if (levels.empty() || levels.size() > max_levels)
    throw ValueError("[hierarchical_block_sparse] there must be 1 to " + std::to_string(max_levels) +
                     " levels: " + std::to_string(levels.size()));
  for (const HierarchyLevel& level : levels) check(level);
}

Pattern HierarchicalBlockSparse::pattern(std::int64_t, bool) const {
  Pattern result = pattern_of(levels_[0]);
  for (std::size_t n = 1; n < levels_.size(); ++n) result = result | pattern_of(levels_[n]);
  return result;
}

}  // namespace poolgrad::attention
