// The multi-head shell around every named core. Constructed as (width, heads, MultiheadOptions, ParameterOptions, and
// the arguments of the core):
//
//   MultiheadDilatedAttention layer(768, 12, {.causal = true}, {}, std::vector<std::int64_t>{2048, 4096},
//                                   std::vector<std::int64_t>{1, 2});
#pragma once

#include "attention/adaptive_block_sparse.h"
#include "attention/block_sparse_attention.h"
#include "attention/block_sparse_ring_dilated_attention.h"
#include "attention/dilated_attention.h"
#include "attention/hierarchical_block_sparse.h"
#include "attention/improved_dilated_attention.h"
#include "attention/multihead.h"
#include "attention/ring_dilated_attention.h"

namespace poolgrad::attention {

using MultiheadDilatedAttention = Multihead<DilatedAttention>;
using ImprovedMultiheadDilatedAttention = Multihead<ImprovedDilatedAttention>;
using RingMultiheadDilatedAttention = Multihead<RingDilatedAttention>;
using BlockSparseMultiheadDilatedAttention = Multihead<BlockSparseDilatedAttention>;
using BlockSparseRingMultiheadDilatedAttention = Multihead<BlockSparseRingDilatedAttention>;
using HierarchicalBlockSparseMultihead = Multihead<HierarchicalBlockSparse>;
using AdaptiveBlockSparseMultihead = Multihead<AdaptiveBlockSparseAttention>;

}  // namespace poolgrad::attention
