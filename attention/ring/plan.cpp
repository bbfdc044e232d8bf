#include "attention/ring/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "allocator/base/lru.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "attention/ring/ring.h"
#include "kernels/schedule/tiles.h"
#include "tensor/geometry.h"

namespace poolgrad::attention {

namespace {

/// Returns the rows of a map's piece in the whole sequence, whose position 0 is row 0.
Tensor piece_of(const Tensor& whole, int dim, const kernels::PositionMap& map,
                const kernels::PositionMap::Piece& piece) {
  return whole.alias(
      sliced(whole.geometry(), dim, piece.position, piece.position + (piece.count - 1) * map.stride + 1, map.stride));
}
Tensor rows_of(const Tensor& shard, int dim, const kernels::PositionMap::Piece& piece) {
  return shard.alias(sliced(shard.geometry(), dim, piece.row, piece.row + piece.count, 1));
}

/// Returns the begin of chunk `chunk` of `chunks`: floor(length * chunk / chunks).
std::int64_t boundary(std::int64_t length, std::int64_t chunk, std::int64_t chunks) {
  return length / chunks * chunk + length % chunks * chunk / chunks;
}

}  // namespace

std::string to_string(Layout layout) {
  return layout == Layout::contiguous ? "contiguous" : layout == Layout::zigzag ? "zigzag" : "striped";
}

Layout parse_layout(const std::string& text) {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    if (to_string(layout) == text) return layout;
  throw ValueError("[layout] not contiguous, zigzag or striped: " + printable(text));
}

kernels::PositionMap shard_map(Layout layout, std::int64_t length, int rank, int ranks, std::int64_t offset) {
  if (length < 0 || rank < 0 || rank >= ranks)
    throw ValueError(fmt::format("[shard_map] there is no rank {} of {} in a sequence of {}", rank, ranks, length));
  if (layout == Layout::striped) {
    const std::int64_t count = kernels::ceil_div(length - rank, ranks);
    return {count, count, offset + rank, offset + rank, ranks};
  }
  if (layout == Layout::contiguous) {
    const std::int64_t begin = boundary(length, rank, ranks);
    return kernels::PositionMap::contiguous(boundary(length, rank + 1, ranks) - begin, offset + begin);
  }
  const std::int64_t chunks = 2 * static_cast<std::int64_t>(ranks), mirrored = chunks - 1 - rank;
  const std::int64_t first = boundary(length, rank, chunks), split = boundary(length, rank + 1, chunks) - first;
  const std::int64_t second = boundary(length, mirrored, chunks);
  const std::int64_t rest = boundary(length, mirrored + 1, chunks) - second;
  if (first + split == second || rest == 0) return kernels::PositionMap::contiguous(split + rest, offset + first);
  if (split == 0) return kernels::PositionMap::contiguous(rest, offset + second);
  return {split + rest, split, offset + first, offset + second, 1};
}

std::vector<int> shard_owners(Layout layout, std::int64_t length, int ranks, std::int64_t begin, std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0), end = std::min(end, length);
  std::vector<int> owners;
  if (begin >= end) return owners;
  if (layout == Layout::striped) {
    for (std::int64_t at = begin; at < end && at < begin + ranks; ++at) owners.push_back(static_cast<int>(at % ranks));
    return owners;
  }
  const std::int64_t chunks = layout == Layout::contiguous ? ranks : 2 * static_cast<std::int64_t>(ranks);
  std::int64_t chunk = 0;  // the chunk that contains `begin`
  for (std::int64_t beyond = chunks; beyond - chunk > 1;) {
    const std::int64_t middle = chunk + (beyond - chunk) / 2;
    (boundary(length, middle, chunks) <= begin ? chunk : beyond) = middle;
  }
  for (; chunk < chunks && boundary(length, chunk, chunks) < end; ++chunk)
    if (boundary(length, chunk, chunks) < boundary(length, chunk + 1, chunks))
      owners.push_back(static_cast<int>(chunk < ranks ? chunk : chunks - 1 - chunk));
  return owners;
}

Tensor take_shard(const Tensor& whole, Layout layout, int rank, int ranks, int dim, CallSite) {
  dim = normalize_dim("take_shard", dim, whole.shape());
  const kernels::PositionMap map = shard_map(layout, whole.size(dim), rank, ranks);
  Shape shape = whole.shape();
  shape[dim] = map.count;
  Tensor shard = Tensor::empty(shape, whole.options());
  for (int n = 0; n < 2; ++n)
    if (const auto piece = map.piece(n); piece.count > 0)
      rows_of(shard, dim, piece).copy_from(piece_of(whole.detach(), dim, map, piece));
  return shard;
}

Tensor join_shards(const std::vector<Tensor>& shards, Layout layout, int dim, CallSite) {
  if (shards.empty()) throw ValueError("[join_shards] no shards");
  const int ranks = static_cast<int>(shards.size());
  dim = normalize_dim("join_shards", dim, shards[0].shape());
  Shape shape = shards[0].shape();
  shape[dim] = 0;
  for (const Tensor& shard : shards) shape[dim] += dim < shard.dim() ? shard.size(dim) : 0;
  Tensor whole = Tensor::empty(shape, shards[0].options());
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor& shard = shards[static_cast<std::size_t>(rank)];
    const kernels::PositionMap map = shard_map(layout, shape[dim], rank, ranks);
    Shape expected = shape;
    expected[dim] = map.count;
    if (shard.shape() != expected || shard.options().dtype != whole.dtype() || shard.device() != whole.device())
      throw ShapeError(fmt::format("[join_shards] the part of rank {} is {}, which is not its part of the {} whole {}",
                                   rank, describe(shard), to_string(layout), describe(whole)));
    for (int n = 0; n < 2; ++n)
      if (const auto piece = map.piece(n); piece.count > 0)
        piece_of(whole, dim, map, piece).copy_from(rows_of(shard.detach(), dim, piece));
  }
  return whole;
}

namespace {

using kernels::AttentionSchedule;
using kernels::AttentionTerm;
using kernels::floor_div;
using kernels::floor_mod;

/// First and last position of a piece of a shard.
struct Range {
  std::int64_t first, last;
  bool meets(const kernels::Interval& positions) const { return first < positions.end && positions.begin <= last; }
};

Range range_of(const kernels::PositionMap& map, const kernels::PositionMap::Piece& piece) {
  return {piece.position, piece.position + (piece.count - 1) * map.stride};
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

/// Returns an interval that contains every key that a term may count for the rows, without its band.
kernels::Interval reach(const AttentionTerm& term, const Range& rows) {
  const auto segments = [&](std::int64_t length) {
    return kernels::Interval{floor_div(rows.first, length) * length, (floor_div(rows.last, length) + 1) * length};
  };
  switch (term.kind) {
    case AttentionTerm::Kind::columns: return {-kernels::far_away, term.size};
    case AttentionTerm::Kind::segment: return segments(term.size);
    case AttentionTerm::Kind::dilated: {  // a short segment may begin in a long one and end beyond it
      kernels::Interval hull = segments(term.segment_length[0]);
      for (int b = 1; b < term.branches; ++b) {
        const kernels::Interval own = segments(term.segment_length[b]);
        hull = {std::min(hull.begin, own.begin), std::max(hull.end, own.end)};
      }
      return hull;
    }
    case AttentionTerm::Kind::offsets: {
      std::int64_t first = term.run[0].first, last = term.run[0].last;
      for (int n = 1; n < term.set_begin[term.sets]; ++n)
        first = std::min<std::int64_t>(first, term.run[n].first), last = std::max<std::int64_t>(last, term.run[n].last);
      return {(floor_div(rows.first, term.size) + first) * term.size,
              (floor_div(rows.last, term.size) + last + 1) * term.size};
    }
    default: return kernels::everywhere;
  }
}

kernels::Interval band(std::int64_t left, std::int64_t right, const Range& rows) {
  return {left == kernels::unbounded ? -kernels::far_away : rows.first - left,
          right == kernels::unbounded ? kernels::far_away : rows.last + right + 1};
}

/// The same for all visited terms of a pass. Shards outside the interval need no search.
kernels::Interval reach(const AttentionSchedule& schedule, const Range& rows) {
  kernels::Interval hull{kernels::far_away, -kernels::far_away};
  for (int n = 0; n < schedule.term_count; ++n) {
    const AttentionTerm& term = schedule.term[n];
    if (!term.visited) continue;
    const kernels::Interval own = reach(term, rows) & band(term.left, term.right, rows);
    hull = {std::min(hull.begin, own.begin), std::max(hull.end, own.end)};
  }
  if (schedule.documents) {
    const std::int64_t *begin = schedule.documents, *end = begin + schedule.document_count + 1;
    const std::int64_t *first = std::upper_bound(begin, end, rows.first),
                       *last = std::upper_bound(begin, end, rows.last);
    hull = hull & kernels::Interval{first == begin ? *begin : first[-1], last == end ? end[-1] : *last};
  }
  return hull & band(schedule.left, schedule.right, rows);
}

/// Returns the range of key position minus row position within a segment of this length, for the rows of a piece that
/// begins at `first`.
kernels::Interval within_segment(const AttentionSchedule& schedule, std::int64_t length, std::int64_t first) {
  const std::int64_t place = floor_mod(first, length);
  return schedule.queries.stride % length == 0 ? kernels::Interval{-place, length - place}  // for all rows
                                               : kernels::Interval{1 - length, length};
}

/// Returns whether key minus row can lie in `distances` and be a multiple of `rate`. Between two pieces it is `apart`,
/// modulo the strides of the shards.
bool may_be_apart(const AttentionSchedule& schedule, std::int64_t apart, const kernels::Interval& distances,
                  std::int64_t rate) {
  const std::int64_t stride = std::gcd(schedule.queries.stride, schedule.keys.stride);
  const kernels::Interval seen = band(schedule.left, schedule.right, {0, 0}) & distances;
  return floor_mod(apart, std::gcd(stride, rate)) == 0 && seen.begin + floor_mod(apart - seen.begin, stride) < seen.end;
}

/// Returns whether a head can have rows of a piece that begins at `first` in its phase of a dilated branch.
bool has_rows_of(const AttentionSchedule& schedule, const AttentionTerm& term, int branch, std::int64_t first) {
  if (term.segment_length[branch] % term.dilation_rate[branch] != 0) return true;
  const std::int64_t common = std::gcd(schedule.queries.stride, term.dilation_rate[branch]);
  for (std::int64_t h = 0; h < schedule.heads; ++h)
    if (floor_mod(first - term.phase(branch, h, schedule.heads), common) == 0) return true;
  return false;
}

bool may_count(const AttentionSchedule& schedule, const AttentionTerm& term, const Range& rows, const Range& keys) {
  if (!term.visited || !keys.meets(band(term.left, term.right, rows)) || !keys.meets(reach(term, rows))) return false;
  const std::int64_t apart = keys.first - rows.first;
  switch (term.kind) {
    case AttentionTerm::Kind::rows: return rows.first < term.size;
    case AttentionTerm::Kind::segment:
      return may_be_apart(schedule, apart, within_segment(schedule, term.size, rows.first), 1);
    case AttentionTerm::Kind::residue: return may_be_apart(schedule, apart, kernels::everywhere, term.size);
    case AttentionTerm::Kind::dilated:
      for (int b = 0; b < term.branches; ++b)
        if ((term.visited_branches >> b & 1) != 0 && has_rows_of(schedule, term, b, rows.first) &&
            may_be_apart(schedule, apart, within_segment(schedule, term.segment_length[b], rows.first),
                         term.dilation_rate[b]))
          return true;
      return false;
    case AttentionTerm::Kind::offsets: break;
    default: return true;
  }
  const std::int64_t nearest = floor_div(keys.first, term.size) - floor_div(rows.last, term.size);
  const std::int64_t farthest = floor_div(keys.last, term.size) - floor_div(rows.first, term.size);
  return std::any_of(term.run, term.run + term.set_begin[term.sets],
                     [&](const auto& run) { return nearest <= run.last && run.first <= farthest; });
}

/// Decides by the ranges and strides of positions only: false is certain.
bool may_visit(const AttentionSchedule& schedule) {
  for (int n = 0; n < 4; ++n) {
    const auto row_piece = schedule.queries.piece(n / 2), key_piece = schedule.keys.piece(n % 2);
    if (row_piece.count <= 0 || key_piece.count <= 0) continue;
    const Range rows = range_of(schedule.queries, row_piece), keys = range_of(schedule.keys, key_piece);
    if (keys.meets(band(schedule.left, schedule.right, rows)) && share_document(schedule, rows, keys) &&
        std::any_of(schedule.term, schedule.term + schedule.term_count,
                    [&](const AttentionTerm& term) { return may_count(schedule, term, rows, keys); }))
      return true;
  }
  return false;
}

/// Returns whether ranges decide too little: stripes span everything, and lists are arbitrary.
bool needs_look(const AttentionSchedule& schedule) {
  return schedule.queries.stride != 1 ||
         std::any_of(schedule.term, schedule.term + schedule.term_count,
                     [](const AttentionTerm& term) { return term.kind == AttentionTerm::Kind::listed; });
}

/// Searches the tiles until one visits a key. Large tiles are cheap, but may count keys between those of two rows that
/// belong to neither; that costs a step that adds nothing. Rows farther apart than a tile is long are a tile each,
/// since most tiles between them are empty.
bool tiles_visit(const AttentionSchedule& schedule) {
  constexpr std::int64_t limit = std::int64_t{1} << 20;
  const auto any = [](const AttentionSchedule& rows) {
    const auto tiles = kernels::AttentionTiles::one_by_one(rows, limit);
    kernels::AttentionTiles::Reader read(tiles);
    for (std::int64_t tile = 0; tile < tiles.count(); ++tile)
      for (std::int64_t h = 0; h < tiles.head_period(); ++h)
        if (!read(h, tile).runs.empty()) return true;
    return false;
  };
  if (schedule.cut == 0 || schedule.queries.stride < schedule.cut) return any(schedule);
  AttentionSchedule one = schedule;
  for (std::int64_t row = 0; row < schedule.queries.count; ++row) {
    one.queries = schedule.queries.part(row, row + 1);
    if (any(one)) return true;
  }
  return false;
}

bool visits_anything(const AttentionSchedule& schedule) {
  return may_visit(schedule) && (!needs_look(schedule) || tiles_visit(schedule));
}

/// Returns whether a key lies within the reach of the rows.
bool within_reach(const AttentionSchedule& pass) {
  for (int n = 0; n < 4; ++n) {
    const auto rows = pass.queries.piece(n / 2), keys = pass.keys.piece(n % 2);
    if (rows.count <= 0 || keys.count <= 0) continue;
    const auto [begin, end] = reach(pass, range_of(pass.queries, rows));
    const std::int64_t stride = pass.keys.stride, first = std::max(begin, keys.position);
    if (keys.position + kernels::ceil_div(first - keys.position, stride) * stride <
        std::min(end, range_of(pass.keys, keys).last + 1))
      return true;
  }
  return false;
}

}  // namespace

bool computes_anything(const AttentionSchedule& pass) { return within_reach(pass) && visits_anything(pass); }

RingPlan::RingPlan(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
                   std::int64_t keys, std::int64_t q_offset)
    : pattern_(pattern),
      layout_(layout),
      ranks_(ranks),
      heads_(heads),
      queries_(queries),
      keys_(keys),
      q_offset_(q_offset),
      any_(compile(0, 0)),
      known_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {
  // In most patterns, one of the two end ranks computes in every visited step.
  std::vector<bool> found(static_cast<std::size_t>(ranks));
  found[0] = true;
  visited_ = {0};
  find_steps(ranks - 1, found);
  for (int rank = 0; rank + 1 < ranks && std::ssize(visited_) < ranks; ++rank) find_steps(rank, found);
  std::sort(visited_.begin(), visited_.end());
}

void RingPlan::find_steps(int rank, std::vector<bool>& found) {
  const kernels::PositionMap queries = queries_of(rank);
  for (const AttentionSchedule& pass : any_.passes)
    for (int n = 0; n < 2; ++n) {
      const auto piece = queries.piece(n);
      if (piece.count <= 0) continue;
      const auto [begin, end] = reach(pass, range_of(queries, piece));
      for (const int other : shard_owners(layout_, keys_, ranks_, begin, end)) {
        const int step = owner(rank, other);  // a symmetric distance
        if (found[static_cast<std::size_t>(step)] || !computes(rank, step)) continue;
        found[static_cast<std::size_t>(step)] = true;
        visited_.push_back(step);
      }
    }
}

bool RingPlan::computes(int rank, int step) const {
  if (step == 0) return true;
  enum : std::uint8_t { unknown, no, yes };
  std::atomic<std::uint8_t>& known = known_[static_cast<std::size_t>(std::int64_t{rank} * ranks_ + step)];
  if (known == unknown) {  // all threads compute the same value
    const auto queries = queries_of(rank), keys = keys_of(owner(rank, step));
    known = std::any_of(any_.passes.begin(), any_.passes.end(),
                        [&](AttentionSchedule pass) {
                          pass.queries = queries, pass.keys = keys;
                          return computes_anything(pass);
                        })
                ? yes
                : no;
  }
  return known == yes;
}

bool RingPlan::is_of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads, std::int64_t queries,
                     std::int64_t keys, std::int64_t q_offset) const {
  return layout == layout_ && ranks == ranks_ && heads == heads_ && queries == queries_ && keys == keys_ &&
         q_offset == q_offset_ && pattern == pattern_;
}

std::shared_ptr<const RingPlan> RingPlan::of(const Pattern& pattern, Layout layout, int ranks, std::int64_t heads,
                                             std::int64_t queries, std::int64_t keys, std::int64_t q_offset) {
  struct Kept {
    std::shared_ptr<const RingPlan> plan;
    std::size_t bytes() const { return plan->known_.size(); }
  };
  static auto* const plans = new Lru<Kept>(std::size_t{64} << 20, 16);
  std::uint64_t hash = 0;
  for (const std::int64_t number : {std::int64_t{ranks}, heads, queries, keys, q_offset})
    hash = kernels::mix(hash + static_cast<std::uint64_t>(number));
  const auto is_it = [&](const Kept& kept) {
    return kept.plan->is_of(pattern, layout, ranks, heads, queries, keys, q_offset);
  };
  const auto make = [&]() -> Kept {
    return {std::make_shared<const RingPlan>(pattern, layout, ranks, heads, queries, keys, q_offset)};
  };
  return plans->get_once(hash, is_it, make).plan;  // the ranks of a process need the same one
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
