#include "attention/modules/named.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::attention {
namespace {

constexpr std::int64_t any_distance = -1;
constexpr std::size_t max_levels = 4;

void check_level(const HierarchyLevel& level) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(fmt::format("[hierarchical_block_sparse] {}: stride {}, window {}, block {}", reason, level.stride,
                                 level.window, level.block));
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

/// Returns the union of the levels.
Pattern pattern_of(const std::vector<HierarchyLevel>& levels) {
  if (levels.empty() || levels.size() > max_levels)
    throw ValueError(
        fmt::format("[hierarchical_block_sparse] there must be 1 to {} levels: {}", max_levels, levels.size()));
  for (const HierarchyLevel& level : levels) check_level(level);
  Pattern result = pattern_of(levels[0]);
  for (std::size_t n = 1; n < levels.size(); ++n) result = result | pattern_of(levels[n]);
  return result;
}

/// Returns the blocks of a configuration, united with dilated segments, if any.
PatternAttention::PatternByLength blocks_by_length(const SparsePatternConfig& config,
                                                   const std::vector<std::int64_t>& segment_lengths,
                                                   const std::vector<std::int64_t>& dilation_rates) {
  config.validate();
  if (segment_lengths.empty() && dilation_rates.empty())
    return [=](std::int64_t length, bool causal) { return config.pattern(length, causal); };
  return [=, segments = Pattern::dilated(segment_lengths, dilation_rates, {.unite = true})](
             std::int64_t length, bool causal) { return config.pattern(length, causal) | segments; };
}

}  // namespace

std::vector<HierarchyLevel> default_hierarchy() { return {{64, 256, 64}, {256, 1024, 128}, {1024, any_distance, 256}}; }

HierarchicalBlockSparse::HierarchicalBlockSparse(const std::vector<HierarchyLevel>& levels, const CoreOptions& options)
    : PatternAttention(pattern_of(levels), {}, options) {}

BlockSparseRingDilatedAttention::BlockSparseRingDilatedAttention(const SparsePatternConfig& config,
                                                                 const RingSetup& ring, const CoreOptions& options,
                                                                 const std::vector<std::int64_t>& segment_lengths,
                                                                 const std::vector<std::int64_t>& dilation_rates)
    : BlockSparseRingDilatedAttention(blocks_by_length(config, segment_lengths, dilation_rates),
                                      config.follows_length(), ring, options) {}

BlockSparseRingDilatedAttention::BlockSparseRingDilatedAttention(const PatternByLength& blocks, bool follows_length,
                                                                 const RingSetup& ring, const CoreOptions& options)
    : PatternAttention(blocks(0, false), ring, options, follows_length ? blocks : PatternByLength()) {}

namespace {

using Core = std::unique_ptr<AttentionCore>;
using Dilated = DilatedFactoryOptions;
using BlockSparse = BlockSparseFactoryOptions;

template <class Options>
struct Entry {
  const char* name;
  Core (*make)(const Options&);
};

template <class Options>
Core make_block_sparse(const Options& o) {
  return std::make_unique<BlockSparseDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.core);
}
template <class Options>
Core make_block_sparse_ring(const Options& o) {
  return std::make_unique<BlockSparseRingDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.ring, o.core);
}
Core make_ring(const Dilated& o) {
  return std::make_unique<RingDilatedAttention>(o.segment_lengths, o.dilation_rates, o.ring, o.dilated, o.core);
}

Core make_dilated(const Dilated& o) {
  return std::make_unique<DilatedAttention>(o.segment_lengths, o.dilation_rates, o.dilated, o.core);
}

constexpr std::array<Entry<Dilated>, 7> types{{
    {"auto", [](const Dilated& o) -> Core { return o.sparse ? make_block_sparse_ring(o) : make_ring(o); }},
    {"standard", make_dilated},
    {"improved", make_dilated},
    {"ring", make_ring},
    {"distributed",
     [](const Dilated& o) -> Core {
       if (!o.ring.communicator) throw ValueError("[create_dilated_attention] distributed needs a communicator");
       return make_ring(o);
     }},
    {"block_sparse", make_block_sparse<Dilated>},
    {"block_sparse_ring", make_block_sparse_ring<Dilated>},
}};

constexpr std::array<Entry<BlockSparse>, 5> variants{{
    {"auto", make_block_sparse_ring<BlockSparse>},
    {"base", make_block_sparse<BlockSparse>},
    {"hierarchical",
     [](const BlockSparse& o) -> Core { return std::make_unique<HierarchicalBlockSparse>(o.levels, o.core); }},
    {"adaptive",
     [](const BlockSparse& o) -> Core {
       return std::make_unique<AdaptiveBlockSparseAttention>(o.head_dim, o.selection, o.core, o.parameters);
     }},
    {"ring", make_block_sparse_ring<BlockSparse>},
}};

struct Preset {
  const char* name;
  const char* variant;
  void (*apply)(BlockSparse&);
};
constexpr std::array<Preset, 5> presets{{
    {"local", "base",
     [](BlockSparse& o) { o.sparse = {.pattern_type = SparsePatternType::local_window, .window_size = 512}; }},
    {"dilated", "base", [](BlockSparse& o) { o.sparse = {.pattern_type = SparsePatternType::dilated_sparse}; }},
    {"global_local", "base",
     [](BlockSparse& o) {
       o.sparse = {.pattern_type = SparsePatternType::global_local, .window_size = 512, .global_tokens = 64};
     }},
    {"ultra_sparse", "base",
     [](BlockSparse& o) { o.sparse = {.pattern_type = SparsePatternType::dilated_sparse, .sparsity_ratio = 0.01}; }},
    {"adaptive_standard", "adaptive", [](BlockSparse& o) { o.selection.sparsity_ratio = 0.1; }},
}};

constexpr const char* block_sparse_op = "[create_block_sparse_attention] ";
/// Returns the entry of this name; nullptr, with the names added to `known`, if there is none.
template <class Entries, class Options>
Core make_named(const Entries& entries, const std::string& name, const Options& options, std::string& known) {
  for (const auto& entry : entries) {
    if (name == entry.name) return entry.make(options);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  return nullptr;
}

/// Returns a factory of mixers around the cores that `create` makes from the name and the options.
template <class Options, class Create>
nn::MixerFactory causal_mixer(Create* create, const std::string& name, const Options& options,
                              MultiheadOptions multihead) {
  multihead.causal = true;
  return [=](const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters,
             std::int64_t) -> std::unique_ptr<nn::SequenceMixer> {
    Options of_model = options;
    if (!of_model.core.generator) of_model.core.generator = parameters.generator;
    return create(name, config.width, config.heads, of_model, as_mixer(multihead, config), parameters, {});
  };
}

}  // namespace

std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type, const DilatedFactoryOptions& options,
                                                        CallSite) {
  std::string known;
  if (Core core = make_named(types, type, options, known)) return core;
  throw ValueError("[create_dilated_attention] unknown type " + in_quotes(type) + "; known are " + known);
}

std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(const std::string& type, std::int64_t embed_dim,
                                                                   std::int64_t num_heads,
                                                                   const DilatedFactoryOptions& options,
                                                                   const MultiheadOptions& multihead,
                                                                   const nn::ParameterOptions& parameters, CallSite) {
  return std::make_unique<MultiheadShell>(embed_dim, num_heads, create_dilated_attention(type, options), multihead,
                                          parameters);
}

nn::MixerFactory dilated_mixer(const std::string& type, const DilatedFactoryOptions& options,
                               const MultiheadOptions& multihead) {
  return causal_mixer(create_multihead_dilated_attention, type, options, multihead);
}

std::unique_ptr<AttentionCore> create_block_sparse_attention(const std::string& variant,
                                                             const BlockSparseFactoryOptions& given, CallSite) {
  BlockSparseFactoryOptions options = given;
  std::string name = variant, known;
  const auto* preset =
      std::find_if(presets.begin(), presets.end(), [&](const Preset& one) { return name == one.name; });
  if (preset != presets.end()) {
    if (options.sparse) throw ValueError(block_sparse_op + ("preset '" + variant) + "' brings its own pattern");
    preset->apply(options);
    name = preset->variant;
  }
  if (Core core = make_named(variants, name, options, known)) return core;
  known += "; presets";
  for (const Preset& one : presets) known += (&one == presets.data() ? " " : ", ") + std::string(one.name);
  if (variant == "multihead") known += "; multihead is create_multihead_block_sparse_attention()";
  throw ValueError(block_sparse_op + ("unknown variant " + in_quotes(variant)) + "; known are " + known);
}

std::unique_ptr<MultiheadShell> create_multihead_block_sparse_attention(
    const std::string& variant, std::int64_t embed_dim, std::int64_t num_heads, BlockSparseFactoryOptions options,
    const MultiheadOptions& multihead, const nn::ParameterOptions& parameters, CallSite) {
  options.head_dim = num_heads > 0 ? embed_dim / num_heads : embed_dim;
  options.parameters = parameters;
  return std::make_unique<MultiheadShell>(embed_dim, num_heads, create_block_sparse_attention(variant, options),
                                          multihead, parameters);
}

nn::MixerFactory block_sparse_mixer(const std::string& variant, const BlockSparseFactoryOptions& options,
                                    const MultiheadOptions& multihead) {
  return causal_mixer(create_multihead_block_sparse_attention, variant, options, multihead);
}

}  // namespace poolgrad::attention
