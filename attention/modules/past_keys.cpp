#include "attention/modules/past_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/engine/record.h"
#include "autograd/operators/shared.h"
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

namespace {

void check_continues(const Tensor& buffer, std::int64_t rows, const Tensor& x) {
  check_alike("kv_cache", {{"buffer", buffer}, {"x", x}});
  Shape same = x.shape();
  if (same.rank() == 4) same[of_positions] = buffer.size(of_positions);
  if (x.dim() != 4 || same != buffer.shape() || buffer.size(of_positions) < rows)
    fail<ShapeError>("kv_cache", fmt::format("x does not continue the {} positions that are kept", rows),
                     {{"buffer", buffer}, {"x", x}});
}

/// Returns the positions of `held` that `past` keeps.
Pattern::Past still_held(const Pattern::Past& held, const Pattern::Past& past, std::int64_t length) {
  const std::int64_t recent = std::max(held.recent, past.recent);
  return {recent == 0 ? 0 : std::min(held.recent == 0 ? length : held.first, past.first), recent};
}

}  // namespace

std::vector<Tensor> append_positions(std::span<Tensor> buffers, Pattern::Past& held, std::int64_t length,
                                     const std::vector<Tensor>& x, const Pattern& pattern) {
  const MemoryScope scope("kv_cache", Category::cache);
  if (length == 0) held = {};
  const std::int64_t rows = held.first + length - held.recent, added = x[0].size(of_positions);
  bool differentiable = wants_gradient(x), own = length > 0;
  std::int64_t capacity = Pattern::unbounded;
  for (std::size_t i = 0; i < x.size() && length > 0; ++i) {
    check_continues(buffers[i], rows, x[i]);
    differentiable = differentiable || wants_gradient({buffers[i]});
    own = own && buffers[i].is_sole_owner();
    capacity = std::min(capacity, buffers[i].size(of_positions));
  }
  const bool has_room = own && !differentiable && rows + added <= capacity;
  const Pattern::Past kept = has_room || length == 0 ? held : still_held(held, pattern.past(length), length);
  const std::int64_t moved = length - kept.recent, from = rows - moved, to = kept.first, total = to + moved + added;
  const auto part = [](const Tensor& buffer, std::int64_t begin, std::int64_t end) {
    return slice(buffer, of_positions, begin, end);
  };
  std::vector<Tensor> result;
  if (differentiable) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::vector<Tensor> parts;
      if (to > 0) parts.push_back(part(buffers[i], 0, to));
      if (moved > 0) parts.push_back(part(buffers[i], from, rows));
      parts.push_back(x[i]);
      result.push_back(parts.size() == 1 ? x[i] : cat(parts, of_positions));
    }
    std::copy(result.begin(), result.end(), buffers.begin());
    held = kept;
    return result;
  }
  const NoGradGuard no_grad;
  const std::int64_t wanted = length == 0 ? total : kept.recent > 0 ? total + moved : total + total / 2;
  // Rows move within a buffer if the target does not overlap them; a smaller one replaces that of a long chunk.
  const bool moves = own && total <= capacity && from - to >= moved && capacity <= wanted;
  std::vector<Tensor> next(buffers.begin(), buffers.end());
  if (!has_room && !moves)
    for (std::size_t i = 0; i < x.size(); ++i) {
      Shape shape = x[i].shape();
      shape[of_positions] = wanted;
      next[i] = Tensor::empty(shape, x[i].options());
      if (to > 0) part(next[i], 0, to).copy_from(part(buffers[i], 0, to));
    }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!has_room && moved > 0) part(next[i], to, to + moved).copy_from(part(buffers[i], from, rows));
    part(next[i], total - added, total).copy_from(x[i].detach());
    result.push_back(part(next[i], 0, total));
  }
  std::move(next.begin(), next.end(), buffers.begin());
  held = kept;
  return result;
}

KeysInReach append_chunk(nn::SequenceState& state, const Tensor& k, const Tensor& v, const Pattern& pattern) {
  state.tensors.resize(2);
  Pattern::Past held;
  if (!state.positions.empty()) held = {state.positions[0], state.positions[1]};
  const std::vector<Tensor> all = append_positions(state.tensors, held, state.length, {k, v}, pattern);
  state.positions = {held.first, held.recent};
  return {all[0], all[1], {.gap_begin = held.first, .gap = held.recent - held.first, .whole = state.context}};
}

}  // namespace poolgrad::attention
