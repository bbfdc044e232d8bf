#include "attention/block_sparse_factory.h"

#include <array>

#include "allocator/error.h"
#include "attention/adaptive_block_sparse.h"
#include "attention/block_sparse_attention.h"
#include "attention/block_sparse_ring_dilated_attention.h"

namespace poolgrad::attention {

namespace {

constexpr const char* op = "[create_block_sparse_attention] ";
constexpr std::int64_t long_sequence = 8192;

using Core = std::unique_ptr<AttentionCore>;

Core make_base(const BlockSparseFactoryOptions& o) {
  return std::make_unique<BlockSparseDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.core);
}
Core make_ring(const BlockSparseFactoryOptions& o) {
  return std::make_unique<BlockSparseRingDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.ring, o.core);
}
Core make_hierarchical(const BlockSparseFactoryOptions& o) {
  return std::make_unique<HierarchicalBlockSparse>(o.levels, o.core);
}
Core make_adaptive(const BlockSparseFactoryOptions& o) {
  return std::make_unique<AdaptiveBlockSparseAttention>(o.workload.head_dim, o.selection, o.core, o.parameters);
}

struct Variant {
  const char* name;
  Core (*make)(const BlockSparseFactoryOptions&);
};
constexpr std::array<Variant, 4> variants{{
    {"base", make_base},
    {"hierarchical", make_hierarchical},
    {"adaptive", make_adaptive},
    {"ring", make_ring},
}};

struct Preset {
  const char* name;
  const char* variant;
  void (*apply)(BlockSparseFactoryOptions&);
};
constexpr std::array<Preset, 5> presets{{
    {"local", "base",
     [](BlockSparseFactoryOptions& o) {
       o.sparse = SparsePatternConfig{.pattern_type = SparsePatternType::local_window, .window_size = 512};
     }},
    {"dilated", "base",
     [](BlockSparseFactoryOptions& o) {
       o.sparse = SparsePatternConfig{.pattern_type = SparsePatternType::dilated_sparse};
     }},
    {"global_local", "base",
     [](BlockSparseFactoryOptions& o) {
       o.sparse = SparsePatternConfig{
           .pattern_type = SparsePatternType::global_local, .window_size = 512, .global_tokens = 64};
     }},
    {"ultra_sparse", "base",
     [](BlockSparseFactoryOptions& o) {
       o.sparse = SparsePatternConfig{.pattern_type = SparsePatternType::dilated_sparse, .sparsity_ratio = 0.01};
     }},
    {"adaptive_standard", "adaptive", [](BlockSparseFactoryOptions& o) { o.selection.sparsity_ratio = 0.1; }},
}};

std::string automatic(const BlockSparseFactoryOptions& options) {
  if (choose_attention_type(options.workload, ModuleRing(options.ring).size(), true) == "block_sparse_ring")
    return "ring";
  return options.sparse || options.workload.length < long_sequence ? "base" : "hierarchical";
}

}  // namespace

std::unique_ptr<AttentionCore> create_block_sparse_attention(const std::string& variant,
                                                             const BlockSparseFactoryOptions& given) {
  BlockSparseFactoryOptions options = given;
  std::string name = variant == "auto" ? automatic(options) : variant, known = "auto";
  for (const Preset& preset : presets)
    if (name == preset.name) {
      if (options.sparse) throw ValueError(op + std::string("preset '") + variant + "' brings its own pattern");
      preset.apply(options);
      name = preset.variant;
      break;
    }
  for (const Variant& entry : variants) {
    if (name == entry.name) return entry.make(options);
    known += ", " + std::string(entry.name);
  }
  known += "; presets";
  for (const Preset& preset : presets) known += (&preset == presets.data() ? " " : ", ") + std::string(preset.name);
  if (variant == "multihead") known += "; multihead is create_multihead_block_sparse_attention()";
  throw ValueError(op + std::string("unknown variant '") + variant + "'; known are " + known);
}

std::unique_ptr<MultiheadShell> create_multihead_block_sparse_attention(const std::string& variant,
                                                                        std::int64_t embed_dim, std::int64_t num_heads,
                                                                        BlockSparseFactoryOptions options,
                                                                        const MultiheadOptions& multihead,
                                                                        const nn::ParameterOptions& parameters) {
  options.workload.heads = num_heads;
  options.workload.head_dim = num_heads > 0 ? embed_dim / num_heads : embed_dim;
  options.workload.dtype = parameters.dtype;
  options.workload.device = parameters.device;
  options.parameters = parameters;
  return std::make_unique<MultiheadShell>(embed_dim, num_heads, create_block_sparse_attention(variant, options),
                                          multihead, parameters);
}

nn::MixerFactory block_sparse_mixer(const std::string& variant, const BlockSparseFactoryOptions& options,
                                    const MultiheadOptions& multihead) {
  return [=](const nn::LanguageModelConfig& config,
             const nn::ParameterOptions& parameters) -> std::unique_ptr<nn::SequenceMixer> {
    return create_multihead_block_sparse_attention(variant, config.width, config.heads, options,
                                                   as_mixer(multihead, config), parameters);
  };
}

}  // namespace poolgrad::attention
