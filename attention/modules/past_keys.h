// The keys and values of earlier positions, in a sequence that comes chunk by chunk.
#pragma once

#include "attention/attend.h"
#include "nn/module.h"

namespace poolgrad::attention {

/// Keys and values that a chunk attends to, and their positions.
struct KeysInReach {
  Tensor k, v;
  KeyPositions positions;
};

/// Returns k (B, n, Hkv, D) and v (B, n, Hkv, Dv) of the chunk after the `state.length` earlier positions, with the
/// kept earlier keys and values in front. The state then includes the chunk, and keeps the positions that `pattern`
/// lets later queries see. `state.tensors` are the keys and values of pieces of the sequence, in order;
/// `state.positions` are their begins and ends. Pieces are never written to: positions are dropped by copying the rest.
/// Throws ValueError for a pattern that looks ahead.
KeysInReach take_chunk(nn::SequenceState& state, const Tensor& k, const Tensor& v, const Pattern& pattern);

}  // namespace poolgrad::attention
