// The keys and values of earlier positions, in a sequence that comes chunk by chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

/// The same for a state without `whole`, whose buffers have room for later positions: one row is written for each
/// position. `state.tensors` are the two buffers and `state.positions` the Pattern::Past that they hold. Does not
/// change `state.length`. `pattern` may look ahead.
KeysInReach append_chunk(nn::SequenceState& state, const Tensor& k, const Tensor& v, const Pattern& pattern);

/// Each buffer (B, capacity, H, D) holds the positions [0, held.first) and [held.recent, length) in its first rows; it
/// is undefined for length 0. Writes x[i] (B, T, H, D) after them and returns the rows in use as views. A full buffer
/// drops the positions that `pattern` hides from later queries, and `held` says so. If there are some, the visible rows
/// move to the front, and the buffer has room for them twice; otherwise it grows by half. So a position is copied O(1)
/// times. A prompt longer than a window stays whole until the next call. Buffers with other owners are replaced. With
/// gradients, concatenates instead. Throws ShapeError, DTypeError, DeviceError, OutOfMemoryError, and then changes
/// nothing.
std::vector<Tensor> append_positions(std::span<Tensor> buffers, Pattern::Past& held, std::int64_t length,
                                     const std::vector<Tensor>& x, const Pattern& pattern = Pattern::causal());

}  // namespace poolgrad::attention
