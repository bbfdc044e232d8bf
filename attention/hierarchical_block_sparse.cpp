#include "attention/hierarchical_block_sparse.h"

#include <algorithm>
#include <limits>
#include <string>

#include "allocator/error.h"
#include "attention/pattern_cache.h"

namespace poolgrad::attention {

namespace {

constexpr std::int64_t any_distance = -1;
constexpr std::size_t max_levels = 4, max_offsets = 32;

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

/// Few distances are offsets, computed as they are needed; many are a list.
Pattern pattern_of(const HierarchyLevel& level, std::int64_t length) {
  const std::int64_t blocks = std::max<std::int64_t>(1, (length + level.block - 1) / level.block);
  const std::int64_t step = level.stride / level.block;
  const std::int64_t reach =
      level.window == any_distance ? blocks - 1 : std::min(blocks - 1, level.window / level.block / 2);
  std::vector<std::int64_t> offsets;
  for (std::int64_t distance = -(reach / step) * step; distance <= reach; distance += step) offsets.push_back(distance);
  if (offsets.size() <= max_offsets) return Pattern::block_offsets(level.block, offsets);
  if (blocks > std::numeric_limits<std::int32_t>::max() / static_cast<std::int64_t>(offsets.size()))
    throw ValueError("[hierarchical_block_sparse] too many blocks to list: length " + std::to_string(length) +
                     ", stride " + std::to_string(level.stride) + ", block " + std::to_string(level.block));
  const auto list = [&] {
    std::vector<std::int32_t> row_begin{0}, columns;
    for (std::int64_t row = 0; row < blocks; ++row) {
      for (const std::int64_t offset : offsets)
        if (row + offset >= 0 && row + offset < blocks) columns.push_back(static_cast<std::int32_t>(row + offset));
      row_begin.push_back(static_cast<std::int32_t>(columns.size()));
    }
    return make_block_lists("hierarchical_block_sparse", {row_begin}, {columns});
  };
  return Pattern::blocks(level.block, PatternCache::global().get({"distances", {reach, step}, blocks}, list));
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

Pattern HierarchicalBlockSparse::pattern(std::int64_t length, bool) const {
  Pattern result = pattern_of(levels_[0], length);
  for (std::size_t n = 1; n < levels_.size(); ++n) result = result | pattern_of(levels_[n], length);
  return result;
}

}  // namespace poolgrad::attention
