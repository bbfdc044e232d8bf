#include "attention/factory.h"

#include <array>
#include <utility>

#include "allocator/error.h"
#include "attention/block_sparse_attention.h"
#include "attention/block_sparse_ring_dilated_attention.h"
#include "attention/dilated_attention.h"
#include "attention/improved_dilated_attention.h"
#include "attention/ring_dilated_attention.h"

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

}  // namespace poolgrad::attention
