// The multi-head shell around every named core. Constructed as (width, heads, MultiheadOptions, ParameterOptions, and
// the arguments of the core):
//
//   MultiheadDilatedAttention layer(768, 12, {.causal = true}, {}, std::vector<std::int64_t>{2048, 4096},
//                                   std::vector<std::int64_t>{1, 2});
#pragma once

#include "attention/modules/block_sparse_attention.h"
#include "attention/modules/dilated_attention.h"
#include "attention/modules/multihead.h"
#include "attention/modules/ring_attention.h"

namespace poolgrad::attention {

using MultiheadDilatedAttention = Multihead<DilatedAttention>;
using ImprovedMultiheadDilatedAttention = Multihead<ImprovedDilatedAttention>;
using RingMultiheadDilatedAttention = Multihead<RingDilatedAttention>;
using BlockSparseMultiheadDilatedAttention = Multihead<BlockSparseDilatedAttention>;
using BlockSparseRingMultiheadDilatedAttention = Multihead<BlockSparseRingDilatedAttention>;
using HierarchicalBlockSparseMultihead = Multihead<HierarchicalBlockSparse>;
using AdaptiveBlockSparseMultihead = Multihead<AdaptiveBlockSparseAttention>;

}  // namespace poolgrad::attention
