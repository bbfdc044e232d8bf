#include "attention/modules/factory.h"

#include <array>
#include <utility>

#include "allocator/error.h"
#include "attention/modules/block_sparse_attention.h"
#include "attention/modules/dilated_attention.h"
#include "attention/modules/ring_attention.h"

namespace poolgrad::attention {
namespace {

using Core = std::unique_ptr<AttentionCore>;
using Options = DilatedFactoryOptions;

Core make_standard(const Options& o) {
  return std::make_unique<DilatedAttention>(o.segment_lengths, o.dilation_rates, o.dilated, o.core);
}
Core make_improved(const Options& o) {
  return std::make_unique<ImprovedDilatedAttention>(o.segment_lengths, o.dilation_rates, o.dilated, o.core);
}
Core make_block_sparse(const Options& o) {
  return std::make_unique<BlockSparseDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.core);
}

Core make_block_sparse_ring(const Options& o) {
  return std::make_unique<BlockSparseRingDilatedAttention>(o.sparse.value_or(SparsePatternConfig{}), o.ring, o.core);
}
Core make_ring(const Options& o) {
  return std::make_unique<RingDilatedAttention>(o.segment_lengths, o.dilation_rates, o.ring, o.dilated, o.core);
}
Core make_distributed(const Options& o) {
  if (!o.ring.communicator) throw ValueError("[create_dilated_attention] distributed needs a communicator");
  return make_ring(o);
}

struct Entry {
  const char* name;
  Core (*make)(const Options&);
};
constexpr std::array<Entry, 6> entries{{
    {"standard", make_standard},
    {"improved", make_improved},
    {"ring", make_ring},
    {"distributed", make_distributed},
    {"block_sparse", make_block_sparse},
    {"block_sparse_ring", make_block_sparse_ring},
}};

}  // namespace

bool exceeds_one_device(const Workload& workload) {
  const double elements = static_cast<double>(workload.batch) * static_cast<double>(workload.length) *
                          static_cast<double>(workload.heads) * static_cast<double>(workload.head_dim);
  return 8.0 * elements * static_cast<double>(size_of(workload.dtype)) >
         static_cast<double>(allocator_for(workload.device).budget());
}

std::string choose_attention_type(const Workload& workload, int ranks, bool sparse) {
  const bool ring = ranks > 1 && (workload.length == 0 || exceeds_one_device(workload));
  if (sparse) return ring ? "block_sparse_ring" : "block_sparse";
  return ring ? "ring" : "improved";
}

std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type, const DilatedFactoryOptions& options) {
  const std::string name = type == "auto" ? choose_attention_type(options.workload, ModuleRing(options.ring).size(),
                                                                  options.sparse.has_value())
                                          : type;
  std::string known = "auto";
  for (const Entry& entry : entries) {
    if (name == entry.name) return entry.make(options);
    known += ", " + std::string(entry.name);
  }
  throw ValueError("[create_dilated_attention] unknown type '" + type + "'; known are " + known);
}

std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(const std::string& type, std::int64_t embed_dim,
                                                                   std::int64_t num_heads,
                                                                   DilatedFactoryOptions options,
                                                                   const MultiheadOptions& multihead,
                                                                   const nn::ParameterOptions& parameters) {
  options.workload.heads = num_heads;
  options.workload.head_dim = num_heads > 0 ? embed_dim / num_heads : embed_dim;
  options.workload.dtype = parameters.dtype;
  options.workload.device = parameters.device;
  return std::make_unique<MultiheadShell>(embed_dim, num_heads, create_dilated_attention(type, options), multihead,
                                          parameters);
}

MultiheadOptions as_mixer(MultiheadOptions options, const nn::LanguageModelConfig& config) {
  options.kv_heads = config.kv_heads;
  options.bias = config.biases;
  options.causal = true;
  options.output_deviation = 0.0;
  options.rope_base.reset();
  if (config.positions == nn::Positions::rope) options.rope_base = 10000.0;
  return options;
}

nn::MixerFactory dilated_mixer(const std::string& type, const DilatedFactoryOptions& options,
                               const MultiheadOptions& multihead) {
  return [=](const nn::LanguageModelConfig& config,
             const nn::ParameterOptions& parameters) -> std::unique_ptr<nn::SequenceMixer> {
    return create_multihead_dilated_attention(type, config.width, config.heads, options, as_mixer(multihead, config),
                                              parameters);
  };
}

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
