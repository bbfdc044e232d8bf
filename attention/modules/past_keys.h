// The keys and values of earlier positions, in a sequence that is gone through chunk by chunk.
#pragma once

#include "attention/attend.h"
#include "nn/module.h"

namespace poolgrad::attention {

/// Keys and values that a chunk attends to, and where they lie.
struct KeysInReach {
  Tensor k, v;
  KeyPositions positions;
};

/// k (B, n, Hkv, D) and v (B, n, Hkv, Dv) of the chunk behind the `state.length` positions seen before, with those of
/// earlier ones that are kept in front. The state then keeps what `pattern` lets positions behind the chunk see, and
/// has seen the chunk: `state.tensors` are the keys and values of pieces of the sequence, in order, and
/// `state.positions` where each begins and ends. A piece is never written to: what falls out of it is left out of a
/// copy. Throws ValueError where the pattern looks ahead.
KeysInReach take_chunk(nn::SequenceState& state, const Tensor& k, const Tensor& v, const Pattern& pattern);

}  // namespace poolgrad::attention
