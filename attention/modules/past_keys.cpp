#include "attention/modules/past_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "kernels/functors/attention_term.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

constexpr int of_positions = 1;

/// Positions [at.begin, at.end) of a sequence.
struct Piece {
  Tensor k, v;
  kernels::Interval at;

  /// Returns a part of the piece: a copy, or a view if grad mode is on.
  Piece part(kernels::Interval of) const {
    const auto cut = [&](const Tensor& x) {
      const Tensor rows = slice(x, of_positions, of.begin - at.begin, of.end - at.begin);
      return grad_enabled() ? rows : rows.copy();
    };
    return {cut(k), cut(v), of};
  }
};

std::vector<Piece> pieces_of(const nn::SequenceState& state) {
  std::vector<Piece> result;
  for (std::size_t i = 0; i + 1 < state.tensors.size(); i += 2)
    result.push_back({state.tensors[i], state.tensors[i + 1], {state.positions[i], state.positions[i + 1]}});
  return result;
}

}  // namespace

KeysInReach take_chunk(nn::SequenceState& state, const Tensor& k, const Tensor& v, const Pattern& pattern) {
  if (pattern.looks_ahead())
    throw ValueError("[chunks] a pattern that looks ahead cannot process a sequence in chunks: " + pattern.to_string());
  const MemoryScope scope("past_keys", Category::cache);
  const std::int64_t begin = state.length, end = begin + k.size(of_positions);
  std::vector<Piece> pieces = pieces_of(state);
  pieces.push_back({k, v, {begin, end}});

  KeysInReach result{k, v, {.whole = state.whole}};
  std::int64_t rows = 0, next = 0;
  std::vector<Tensor> keys, values;
  for (const Piece& piece : pieces) {
    if (piece.at.begin > next) {
      if (result.positions.gap != 0)
        throw ValueError("[chunks] more than one range of keys was dropped by " + pattern.to_string());
      result.positions.gap_begin = rows, result.positions.gap = piece.at.begin - next;
    }
    rows += piece.at.end - piece.at.begin;
    next = piece.at.end;
    keys.push_back(piece.k);
    values.push_back(piece.v);
  }
  if (pieces.size() > 1) result.k = cat(keys, of_positions), result.v = cat(values, of_positions);

  const Pattern::Past past = pattern.past(end);
  state.length = end;
  state.tensors.clear();
  state.positions.clear();
  for (const Piece& piece : pieces)
    for (const kernels::Interval seen : {kernels::Interval{0, past.first}, kernels::Interval{past.recent, end}}) {
      const kernels::Interval kept = piece.at & seen;
      if (kept.empty()) continue;
      const bool as_it_is = piece.at.begin < begin && kept.begin == piece.at.begin && kept.end == piece.at.end;
      const Piece part = as_it_is ? piece : piece.part(kept);
      state.tensors.insert(state.tensors.end(), {part.k, part.v});
      state.positions.insert(state.positions.end(), {kept.begin, kept.end});
    }
  return result;
}

}  // namespace poolgrad::attention
