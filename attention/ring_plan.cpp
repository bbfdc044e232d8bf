#include "attention/ring_plan.h"

#include <algorithm>

namespace poolgrad::attention {

namespace {

using kernels::AttentionSchedule;
using kernels::AttentionTerm;
using kernels::floor_div;

/// First and last position of a piece of a shard.
struct Range {
  std::int64_t first, last;
  /// Whether some segment of this length has positions of both.
  bool shares_segment(const Range& other, std::int64_t length) const {
    return floor_div(first, length) <= floor_div(other.last, length) &&
           floor_div(other.first, length) <= floor_div(last, length);
  }
};

/// Whether some key - row lies in [-left, right].
bool within_band(std::int64_t left, std::int64_t right, const Range& rows, const Range& keys) {
  return (left == kernels::unbounded || keys.last - rows.first >= -left) &&
         (right == kernels::unbounded || keys.first - rows.last <= right);
}

bool share_document(const AttentionSchedule& schedule, const Range& rows, const Range& keys) {
  if (!schedule.documents) return true;
  const std::int64_t *begin = schedule.documents, *end = begin + schedule.document_count + 1;
  const auto document_of = [&](std::int64_t position) { return std::upper_bound(begin, end, position) - begin - 1; };
  const auto first = std::max({document_of(rows.first), document_of(keys.first), std::ptrdiff_t{0}});
  const auto last = std::min(
      {document_of(rows.last), document_of(keys.last), static_cast<std::ptrdiff_t>(schedule.document_count) - 1});
  return first <= last;
}

bool may_count(const AttentionTerm& term, const Range& rows, const Range& keys) {
  if (!term.visited || !within_band(term.left, term.right, rows, keys)) return false;
  switch (term.kind) {
    case AttentionTerm::Kind::columns: return keys.first < term.size;
    case AttentionTerm::Kind::rows: return rows.first < term.size;
    case AttentionTerm::Kind::segment: return rows.shares_segment(keys, term.size);
    case AttentionTerm::Kind::dilated:
      return std::any_of(term.segment_length, term.segment_length + term.branches,
                         [&](std::int64_t length) { return rows.shares_segment(keys, length); });
    case AttentionTerm::Kind::offsets: {
      const std::int64_t nearest = floor_div(keys.first, term.size) - floor_div(rows.last, term.size);
      const std::int64_t farthest = floor_div(keys.last, term.size) - floor_div(rows.first, term.size);
      return std::any_of(term.run, term.run + term.set_begin[term.sets],
                         [&](const auto& run) { return nearest <= run.last && run.first <= farthest; });
    }
    default: return true;
  }
}

/// By the ranges of positions alone: false is certain.
bool may_visit(const AttentionSchedule& schedule) {
  for (int n = 0; n < 4; ++n) {
    const auto row_piece = schedule.queries.piece(n / 2), key_piece = schedule.keys.piece(n % 2);
    if (row_piece.count <= 0 || key_piece.count <= 0) continue;
    const Range rows{row_piece.position, row_piece.position + (row_piece.count - 1) * schedule.queries.stride};
    const Range keys{key_piece.position, key_piece.position + (key_piece.count - 1) * schedule.keys.stride};
    if (within_band(schedule.left, schedule.right, rows, keys) && share_document(schedule, rows, keys) &&
        std::any_of(schedule.term, schedule.term + schedule.term_count,
                    [&](const AttentionTerm& term) { return may_count(term, rows, keys); }))
      return true;
  }
  return false;
}

/// Whether ranges say little: stripes span everything, and lists are anything.
bool needs_look(const AttentionSchedule& schedule) {
  return schedule.queries.stride != 1 ||
         std::any_of(schedule.term, schedule.term + schedule.term_count,
                     [](const AttentionTerm& term) { return term.kind == AttentionTerm::Kind::listed; });
}

/// Goes through the tiles until one visits a key. Large tiles make it cheap; they may count keys that lie between those
/// of two rows without belonging to either, which costs a step that adds nothing.
bool tiles_visit(const AttentionSchedule& schedule) {
  constexpr std::int64_t limit = std::int64_t{1} << 20;
  const kernels::RowTiling tiling(schedule, limit);
  bool found = false;
  for (std::int64_t h = 0; h < schedule.heads && !found; ++h)
    for (std::int64_t tile = 0; tile < tiling.tiles() && !found; ++tile)
      kernels::for_each_key_tile(schedule, h, tiling.tile(tile), limit,
                                 [&](const kernels::Strip&, const kernels::Progression&) { found = true; });
  return found;
}

bool visits_anything(const AttentionSchedule& schedule) {
  return may_visit(schedule) && (!needs_look(schedule) || tiles_visit(schedule));
}

}  // namespace

RingPlan::RingPlan(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
                   std::int64_t keys, std::int64_t q_offset)
    : pattern_(pattern),
      layout_(layout),
      ranks_(ranks),
      heads_(heads),
      queries_(queries),
      keys_(keys),
      q_offset_(q_offset) {
  for (int rank = 0; rank < ranks; ++rank)
    for (int step = 0; step < ranks; ++step) {
      bool anything = step == 0;
      if (!anything)
        for (const kernels::AttentionSchedule& pass : compile(rank, step).passes)
          anything = anything || visits_anything(pass);
      computes_.push_back(anything);
    }
  for (int step = 0; step < ranks; ++step) {
    bool wanted = false;
    for (int rank = 0; rank < ranks; ++rank) wanted = wanted || computes(rank, step);
    if (wanted) visited_.push_back(step);
  }
}

std::int64_t RingPlan::most_keys() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, keys_of(rank).count);
  return most;
}

Pattern::Compiled RingPlan::compile(int rank, int step) const {
  return pattern_.compile(heads_, queries_of(rank), keys_of(owner(rank, step)));
}

}  // namespace poolgrad::attention
