#include "attention/modules/factory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/error.h"

namespace poolgrad::attention {
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

constexpr std::array<Entry<Dilated>, 6> types{{
    {"standard",
     [](const Dilated& o) -> Core {
       return std::make_unique<DilatedAttention>(o.segment_lengths, o.dilation_rates, o.dilated, o.core);
     }},
    {"improved",
     [](const Dilated& o) -> Core {
       return std::make_unique<ImprovedDilatedAttention>(o.segment_lengths, o.dilation_rates, o.dilated, o.core);
     }},
    {"ring", make_ring},
    {"distributed",
     [](const Dilated& o) -> Core {
       if (!o.ring.communicator) throw ValueError("[create_dilated_attention] distributed needs a communicator");
       return make_ring(o);
     }},
    {"block_sparse", make_block_sparse<Dilated>},
    {"block_sparse_ring", make_block_sparse_ring<Dilated>},
}};

constexpr std::array<Entry<BlockSparse>, 4> variants{{
    {"base", make_block_sparse<BlockSparse>},
    {"hierarchical",
     [](const BlockSparse& o) -> Core { return std::make_unique<HierarchicalBlockSparse>(o.levels, o.core); }},
    {"adaptive",
     [](const BlockSparse& o) -> Core {
       return std::make_unique<AdaptiveBlockSparseAttention>(o.workload.head_dim, o.selection, o.core, o.parameters);
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
constexpr std::int64_t long_sequence = 8192;

std::string automatic(const BlockSparse& options) {
  if (choose_attention_type(options.workload, ModuleRing(options.ring).size(), true) == "block_sparse_ring")
    return "ring";
  return options.sparse || options.workload.length < long_sequence ? "base" : "hierarchical";
}

/// The one of this name; null, with the names added to `known`, where there is none.
template <class Entries, class Options>
Core make_named(const Entries& entries, const std::string& name, const Options& options, std::string& known) {
  for (const auto& entry : entries) {
    if (name == entry.name) return entry.make(options);
    known += ", " + std::string(entry.name);
  }
  return nullptr;
}

/// What the shell around a core says about its workload.
void complete(Workload& workload, std::int64_t width, std::int64_t heads, const nn::ParameterOptions& parameters) {
  workload.heads = heads;
  workload.head_dim = heads > 0 ? width / heads : width;
  workload.dtype = parameters.dtype;
  workload.device = parameters.device;
}

/// What `create` makes of the name and the options, as the mixers of a language model.
template <class Options, class Create>
nn::MixerFactory causal_mixer(Create* create, const std::string& name, const Options& options,
                              MultiheadOptions multihead) {
  multihead.causal = true;
  return [=](const nn::LanguageModelConfig& config,
             const nn::ParameterOptions& parameters) -> std::unique_ptr<nn::SequenceMixer> {
    Options of_model = options;
    if (!of_model.core.generator) of_model.core.generator = parameters.generator;
    return create(name, config.width, config.heads, of_model, as_mixer(multihead, config), parameters, {});
  };
}

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

std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type, const DilatedFactoryOptions& options,
                                                        CallSite) {
  const std::string name = type == "auto" ? choose_attention_type(options.workload, ModuleRing(options.ring).size(),
                                                                  options.sparse.has_value())
                                          : type;
  std::string known = "auto";
  if (Core core = make_named(types, name, options, known)) return core;
  throw ValueError("[create_dilated_attention] unknown type " + in_quotes(type) + "; known are " + known);
}

std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(const std::string& type, std::int64_t embed_dim,
                                                                   std::int64_t num_heads,
                                                                   DilatedFactoryOptions options,
                                                                   const MultiheadOptions& multihead,
                                                                   const nn::ParameterOptions& parameters, CallSite) {
  complete(options.workload, embed_dim, num_heads, parameters);
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
  std::string name = variant == "auto" ? automatic(options) : variant, known = "auto";
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
  complete(options.workload, embed_dim, num_heads, parameters);
  options.parameters = parameters;
  return std::make_unique<MultiheadShell>(embed_dim, num_heads, create_block_sparse_attention(variant, options),
                                          multihead, parameters);
}

nn::MixerFactory block_sparse_mixer(const std::string& variant, const BlockSparseFactoryOptions& options,
                                    const MultiheadOptions& multihead) {
  return causal_mixer(create_multihead_block_sparse_attention, variant, options, multihead);
}

}  // namespace poolgrad::attention
