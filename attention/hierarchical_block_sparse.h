// Near keys densely, far keys in ever sparser and larger blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/block_sparse_attention.h"

namespace poolgrad::attention {

/// One level: of the blocks of `block` positions, those whose distance from the query's block is a multiple of
/// stride / block, up to window / 2 positions away on either side (-1: any distance). It so keeps block / stride of its
/// window.
struct HierarchyLevel {
  std::int64_t stride, window, block;
};

/// 64 / 256 / 64: all that is near. 256 / 1024 / 128: half of the blocks further out. 1024 / -1 / 256: a quarter of
/// all.
std::vector<HierarchyLevel> default_hierarchy();

/// The union of the levels: a pair that several of them admit counts once. Every query sees its own block.
class HierarchicalBlockSparse : public BlockSparseCore {
 public:
  /// At most 4 levels. ValueError: none or too many, a block that is no multiple of 16, a stride that is no positive
  /// multiple of its block, a window below its block that is not -1.
  explicit HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels = default_hierarchy(),
                                   const CoreOptions& options = {});

  Pattern pattern(std::int64_t length, bool causal = false) const override;

 private:
  std::vector<HierarchyLevel> levels_;
};

}  // namespace poolgrad::attention
