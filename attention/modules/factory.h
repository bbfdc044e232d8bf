// Attention modules by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/modules/multihead.h"

namespace poolgrad::attention {

/// What `auto` decides by, beside patterns and ranks.
struct Workload {
  std::int64_t length = 0;  // of the whole sequence; 0: not known
  std::int64_t batch = 1, heads = 12, head_dim = 64;
  DType dtype = DType::f32;
  Device device = cpu;
};

/// Whether q, k, v, the result and their gradients are more than the pool of one device may hold; false where the
/// length is not known.
bool exceeds_one_device(const Workload& workload);

struct DilatedFactoryOptions {
  std::vector<std::int64_t> segment_lengths{2048, 4096, 8192};
  std::vector<std::int64_t> dilation_rates{1, 2, 4};
  DilatedOptions dilated = {};
  CoreOptions core = {};
  /// Blocks of the block-sparse types; where given, `auto` takes one of these.
  std::optional<SparsePatternConfig> sparse = {};
  RingSetup ring = {};  // of the ring types; `auto` takes one of these where it has several ranks
  Workload workload = {};
};

/// "improved" or, with several ranks and a sequence whose length is not known or that one device cannot hold, "ring";
/// with `sparse` "block_sparse" and "block_sparse_ring".
std::string choose_attention_type(const Workload& workload, int ranks, bool sparse);

/// standard: DilatedAttention. improved: ImprovedDilatedAttention. ring: RingDilatedAttention.
/// distributed: the same between processes, by `ring.communicator` (ValueError without). block_sparse:
/// BlockSparseDilatedAttention. block_sparse_ring: BlockSparseRingDilatedAttention. auto: choose_attention_type().
/// ValueError for any other, listing these. The block-sparse types take their blocks alone, no segments.
std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type = "auto",
                                                        const DilatedFactoryOptions& options = {}, CallSite = {});

/// The same core inside a MultiheadShell; `workload` takes heads, width and dtype from here.
std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(
    const std::string& type = "auto", std::int64_t embed_dim = 768, std::int64_t num_heads = 12,
    DilatedFactoryOptions options = {}, const MultiheadOptions& multihead = {},
    const nn::ParameterOptions& parameters = {}, CallSite = {});

/// The same as the mixers of an nn::LanguageModel: causal, see as_mixer(). Weights are dropped by the parameters'
/// generator where `core` has none, as in attention_mixer().
nn::MixerFactory dilated_mixer(const std::string& type = "auto", const DilatedFactoryOptions& options = {},
                               const MultiheadOptions& multihead = {});

// Block-sparse attention by name: variants and presets.

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
                                                             const BlockSparseFactoryOptions& options = {},
                                                             CallSite = {});

/// The variant "multihead": any of the above inside a MultiheadShell; `workload` takes heads, width and dtype from
/// here.
std::unique_ptr<MultiheadShell> create_multihead_block_sparse_attention(
    const std::string& variant = "auto", std::int64_t embed_dim = 768, std::int64_t num_heads = 12,
    BlockSparseFactoryOptions options = {}, const MultiheadOptions& multihead = {},
    const nn::ParameterOptions& parameters = {}, CallSite = {});

/// The same as the mixers of an nn::LanguageModel, see dilated_mixer().
nn::MixerFactory block_sparse_mixer(const std::string& variant = "auto", const BlockSparseFactoryOptions& options = {},
                                    const MultiheadOptions& multihead = {});

}  // namespace poolgrad::attention
