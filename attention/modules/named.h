// The original project's attention modules by name. Each is PatternAttention, alone or inside MultiheadShell, with
// these settings:
//
//   DilatedAttention, ImprovedDilatedAttention   Pattern::dilated(): the branches' mixture (LongNet, Ding et al. 2023,
//                                                section 2.3), weighted by exp(lse), is one softmax over all their keys
//   RingDilatedAttention                         the same over a ring
//   BlockSparseDilatedAttention                  SparsePatternConfig, united with Pattern::dilated() where segments are
//                                                given: a pair that both admit counts once
//   BlockSparseRingDilatedAttention              the same over a ring
//   HierarchicalBlockSparse                      union of Pattern::spaced_blocks()
//   AdaptiveBlockSparseAttention                 block_selection.h
//   RingAttention                                PatternAttention
//   ...Multihead...                              MultiheadShell around one of these, such as
//
//   MultiheadDilatedAttention layer(768, 12, {.causal = true}, {}, std::vector<std::int64_t>{2048, 4096},
//                                   std::vector<std::int64_t>{1, 2});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/modules/block_selection.h"
#include "attention/modules/multihead.h"
#include "attention/modules/pattern_attention.h"
#include "attention/pattern/sparse_pattern_config.h"

namespace poolgrad::attention {

using RingAttention = PatternAttention;

/// Throws the errors of Pattern::dilated() and PatternAttention.
struct RingDilatedAttention : PatternAttention {
  RingDilatedAttention(const std::vector<std::int64_t>& segment_lengths,
                       const std::vector<std::int64_t>& dilation_rates, const RingSetup& ring = {},
                       const DilatedOptions& dilated = {}, const CoreOptions& options = {})
      : PatternAttention(Pattern::dilated(segment_lengths, dilation_rates, dilated), ring, options) {}
};
struct DilatedAttention : RingDilatedAttention {
  DilatedAttention(const std::vector<std::int64_t>& segment_lengths, const std::vector<std::int64_t>& dilation_rates,
                   const DilatedOptions& dilated = {}, const CoreOptions& options = {})
      : RingDilatedAttention(segment_lengths, dilation_rates, {}, dilated, options) {}
};
using ImprovedDilatedAttention = DilatedAttention;

/// Blocks are those of the whole sequence and may cross the ends of a rank's part. Throws the errors of
/// SparsePatternConfig::validate(), Pattern::dilated() and PatternAttention.
struct BlockSparseRingDilatedAttention : PatternAttention {
  explicit BlockSparseRingDilatedAttention(const SparsePatternConfig& config = {}, const RingSetup& ring = {},
                                           const CoreOptions& options = {},
                                           const std::vector<std::int64_t>& segment_lengths = {},
                                           const std::vector<std::int64_t>& dilation_rates = {});

 private:
  BlockSparseRingDilatedAttention(const PatternByLength& blocks, bool follows_length, const RingSetup& ring,
                                  const CoreOptions& options);
};
struct BlockSparseDilatedAttention : BlockSparseRingDilatedAttention {
  explicit BlockSparseDilatedAttention(const SparsePatternConfig& config = {}, const CoreOptions& options = {},
                                       const std::vector<std::int64_t>& segment_lengths = {},
                                       const std::vector<std::int64_t>& dilation_rates = {})
      : BlockSparseRingDilatedAttention(config, {}, options, segment_lengths, dilation_rates) {}
};

/// One level of blocks of `block` positions. A query's block sees the blocks at distances that are a multiple of stride
/// / block, up to window / 2 positions away on either side (-1: any distance). A level keeps block / stride of its
/// window.
struct HierarchyLevel {
  std::int64_t stride, window, block;
};
/// Stride, window and block: {64, 256, 64} keeps all near blocks, {256, 1024, 128} half of the blocks further out, and
/// {1024, -1, 256} a quarter of all.
std::vector<HierarchyLevel> default_hierarchy();

/// The union of the levels: a pair in several levels counts once. Every query sees its own block.
struct HierarchicalBlockSparse : PatternAttention {
  /// Throws ValueError for no or more than 4 levels, a block that is not a multiple of 16, a stride that is not a
  /// positive multiple of its block, and a window below its block other than -1.
  explicit HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels = default_hierarchy(),
                                   const CoreOptions& options = {});
};

using MultiheadDilatedAttention = Multihead<DilatedAttention>;
using ImprovedMultiheadDilatedAttention = Multihead<ImprovedDilatedAttention>;
using RingMultiheadDilatedAttention = Multihead<RingDilatedAttention>;
using BlockSparseMultiheadDilatedAttention = Multihead<BlockSparseDilatedAttention>;
using BlockSparseRingMultiheadDilatedAttention = Multihead<BlockSparseRingDilatedAttention>;
using HierarchicalBlockSparseMultihead = Multihead<HierarchicalBlockSparse>;
using AdaptiveBlockSparseMultihead = Multihead<AdaptiveBlockSparseAttention>;

struct DilatedFactoryOptions {
  std::vector<std::int64_t> segment_lengths{2048, 4096, 8192};
  std::vector<std::int64_t> dilation_rates{1, 2, 4};
  DilatedOptions dilated = {};
  CoreOptions core = {};
  std::optional<SparsePatternConfig> sparse = {};  // of the block-sparse types
  RingSetup ring = {};                             // of the ring types
};

/// standard, improved: DilatedAttention. ring: RingDilatedAttention. distributed: the same between processes, by
/// `ring.communicator` (ValueError without one). block_sparse: BlockSparseDilatedAttention. block_sparse_ring:
/// BlockSparseRingDilatedAttention. auto: block_sparse_ring with `sparse`, otherwise ring; with one rank their
/// single-device forms. Throws ValueError, listing these, for any other type. The block-sparse types use their blocks
/// only, no segments.
std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type = "auto",
                                                        const DilatedFactoryOptions& options = {}, CallSite = {});
/// Returns the same core inside a MultiheadShell.
std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(
    const std::string& type = "auto", std::int64_t embed_dim = 768, std::int64_t num_heads = 12,
    const DilatedFactoryOptions& options = {}, const MultiheadOptions& multihead = {},
    const nn::ParameterOptions& parameters = {}, CallSite = {});
/// Returns the same as mixers of an nn::LanguageModel: causal, see as_mixer(). Without a generator in `core`, dropout
/// uses the parameters' generator, as in attention_mixer().
nn::MixerFactory dilated_mixer(const std::string& type = "auto", const DilatedFactoryOptions& options = {},
                               const MultiheadOptions& multihead = {});

struct BlockSparseFactoryOptions {
  /// For base and ring. Throws ValueError with a preset, which has its own.
  std::optional<SparsePatternConfig> sparse = {};
  std::vector<HierarchyLevel> levels = default_hierarchy();  // hierarchical
  BlockSelectionOptions selection = {};                      // adaptive
  RingSetup ring = {};                                       // ring
  CoreOptions core = {};
  std::int64_t head_dim = 64;            // adaptive; a shell uses its own
  nn::ParameterOptions parameters = {};  // adaptive
};

/// Variants. base: BlockSparseDilatedAttention. hierarchical: HierarchicalBlockSparse. adaptive:
/// AdaptiveBlockSparseAttention. ring, auto: BlockSparseRingDilatedAttention; with one rank its single-device form.
///
/// Presets. local: window of 512 in blocks of 64. dilated: offsets 0, +-1, +-2, +-4 blocks of 64. global_local: window
/// of 512 and 64 global tokens. ultra_sparse: dilated with 1 % of the blocks. adaptive_standard: adaptive with a tenth
/// of the blocks.
///
/// Throws ValueError, listing these, for any other name.
std::unique_ptr<AttentionCore> create_block_sparse_attention(const std::string& variant = "auto",
                                                             const BlockSparseFactoryOptions& options = {},
                                                             CallSite = {});
/// The variant "multihead": any of these inside a MultiheadShell.
std::unique_ptr<MultiheadShell> create_multihead_block_sparse_attention(
    const std::string& variant = "auto", std::int64_t embed_dim = 768, std::int64_t num_heads = 12,
    BlockSparseFactoryOptions options = {}, const MultiheadOptions& multihead = {},
    const nn::ParameterOptions& parameters = {}, CallSite = {});
/// Returns the same as mixers of an nn::LanguageModel, see dilated_mixer().
nn::MixerFactory block_sparse_mixer(const std::string& variant = "auto", const BlockSparseFactoryOptions& options = {},
                                    const MultiheadOptions& multihead = {});

}  // namespace poolgrad::attention
