// Attention modules by name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention/attention_core.h"
#include "attention/multihead.h"
#include "attention/sparse_pattern_config.h"

namespace poolgrad::attention {

/// What `auto` decides by.
struct Workload {
  std::int64_t length = 0;  // 0: not known
  std::int64_t batch = 1, heads = 12, head_dim = 64;
  DType dtype = DType::f32;
  Device device = cpu;
  int devices = 1;  // that share a sequence: ranks of a ring
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
  Workload workload = {};
};

/// "improved" or, with several devices and a sequence whose length is not known or that one cannot hold, "ring"; with
/// `sparse` "block_sparse" and "block_sparse_ring".
std::string choose_attention_type(const Workload& workload, bool sparse);

/// standard: the readable DilatedAttention. improved: ImprovedDilatedAttention. block_sparse:
/// BlockSparseDilatedAttention. ring, block_sparse_ring: RingDilatedAttention and BlockSparseRingDilatedAttention with
/// `workload.devices` ranks in this process. auto: choose_attention_type(). ValueError for any other, listing these.
std::unique_ptr<AttentionCore> create_dilated_attention(const std::string& type = "auto",
                                                        const DilatedFactoryOptions& options = {});

/// The same core inside a MultiheadShell; `workload` takes heads, width and dtype from here.
std::unique_ptr<MultiheadShell> create_multihead_dilated_attention(const std::string& type = "auto",
                                                                   std::int64_t embed_dim = 768,
                                                                   std::int64_t num_heads = 12,
                                                                   DilatedFactoryOptions options = {},
                                                                   const MultiheadOptions& multihead = {},
                                                                   const nn::ParameterOptions& parameters = {});

}  // namespace poolgrad::attention
