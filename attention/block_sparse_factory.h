// Block-sparse attention by name: variants and presets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/block_selection.h"
#include "attention/factory.h"
#include "attention/hierarchical_block_sparse.h"
#include "attention/sparse_pattern_config.h"

namespace poolgrad::attention {

struct BlockSparseFactoryOptions {
  /// base, ring. A preset brings its own: ValueError where both are given.
  std::optional<SparsePatternConfig> sparse = {};
  std::vector<HierarchyLevel> levels = default_hierarchy();  // hierarchical
  BlockSelectionOptions selection = {};                      // adaptive
  RingSetup ring = {};                                       // ring
  CoreOptions core = {};
  Workload workload = {};                // `auto` decides by it; head_dim is also adaptive's
  nn::ParameterOptions parameters = {};  // adaptive
};

/// Variants. base: BlockSparseDilatedAttention. hierarchical: HierarchicalBlockSparse. adaptive:
/// AdaptiveBlockSparseAttention. ring: BlockSparseRingDilatedAttention. auto: ring where choose_attention_type() says
/// so; base where a pattern is given or the length is below 8192, and hierarchical above.
///
/// Presets. local: window of 512 in blocks of 64. dilated: offsets 0, +-1, +-2, +-4 blocks of 64. global_local: window
/// of 512 and 64 global tokens. ultra_sparse: dilated with 1 % of the blocks. adaptive_standard: adaptive with a tenth
/// of the blocks.
///
/// ValueError for any other name, listing these.
std::unique_ptr<AttentionCore> create_block_sparse_attention(const std::string& variant = "auto",
                                                             const BlockSparseFactoryOptions& options = {});

/// The variant "multihead": any of the above inside a MultiheadShell; `workload` takes heads, width and dtype from
/// here.
std::unique_ptr<MultiheadShell> create_multihead_block_sparse_attention(const std::string& variant = "auto",
                                                                        std::int64_t embed_dim = 768,
                                                                        std::int64_t num_heads = 12,
                                                                        BlockSparseFactoryOptions options = {},
                                                                        const MultiheadOptions& multihead = {},
                                                                        const nn::ParameterOptions& parameters = {});

/// The same as the mixers of an nn::LanguageModel, see dilated_mixer().
nn::MixerFactory block_sparse_mixer(const std::string& variant = "auto", const BlockSparseFactoryOptions& options = {},
                                    const MultiheadOptions& multihead = {});

}  // namespace poolgrad::attention
