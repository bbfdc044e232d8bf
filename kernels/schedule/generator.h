// Expands a schedule into the runs of keys of a tile. Terms produce strips, and unions subtract strips from strips. The
// position map turns strips into runs of a tensor. A run keeps only the bounds that affect rows of the tile. Host only:
// compiled for a device it would use every register and 12 KB of stack. Kernels read the result,
// kernels/schedule/program.h.
#pragma once

#include <array>
#include <numeric>

#include "kernels/schedule/program.h"
#include "kernels/schedule/strips.h"

namespace poolgrad::kernels {

/// Adds the term's own band, seen from the rows.
inline void add_band(const AttentionTerm& term, bool flipped, Strip& strip) {
  const std::int64_t left = flipped ? term.right : term.left, right = flipped ? term.left : term.right;
  if (left != unbounded) strip.add_low({1, -left});
  if (right != unbounded) strip.add_high({1, right + 1});
}

/// Earlier terms in the group of term[t]: as regions if they are few, otherwise as a mask.
class EarlierTerms {
 public:
  static constexpr int max_regions = 8;

  EarlierTerms(const AttentionTerm* term, int t, const TileOfHead& tile) {
    for (int e = 0; e < t && !masked_; ++e)
      if (term[e].group == term[t].group) take_in(term[e], tile);
  }

  /// Calls f(const Strip&) for disjoint strips that make up `strip` without the earlier terms. It may set strip.masked,
  /// but keeps the strip's edges, so the caller can derive more strips.
  template <class F>
  void subtract(Strip& strip, const Progression& tile, F&& f) const {
    if (masked_) strip.masked = true;
    const Strip& whole = strip;
    if (masked_ || count_ == 0) return f(whole);
    Strip rest = strip;
    carve(rest, 0, tile, f);
  }

 private:
  void take_in(const AttentionTerm& term, const TileOfHead& tile) {
    using Kind = AttentionTerm::Kind;
    if (term.kind == Kind::residue || term.kind == Kind::dilated || term.kind == Kind::listed ||
        term.kind == Kind::random) {
      masked_ = true;
      return;
    }
    Strip base;
    add_band(term, tile.flipped, base);
    for_each_term_strip(term, tile, base, [&](const Strip& strip) {
      if (masked_ || hull_of(strip, tile.rows).empty()) return;
      if (count_ == max_regions)
        masked_ = true;
      else
        region_[count_++] = strip;
    });
  }

  /// Subtracts the regions from n on. Each constraint of a region splits off the part that violates it and satisfies
  /// the constraints before it. The parts are therefore disjoint.
  template <class F>
  void carve(Strip& strip, int n, const Progression& tile, F& f) const {
    while (n < count_ && apart(strip, region_[n], tile)) ++n;
    const Strip& whole = strip;
    if (n == count_) return f(whole);
    const Region& region = region_[n];
    const auto part = [&](auto&& change) {
      Strip piece = strip;
      change(piece);
      if (!hull_of(piece, tile).empty()) carve(piece, n + 1, tile, f);
    };
    if (strip.rows.begin < region.rows.begin) {
      part([&](Strip& piece) { piece.rows.end = region.rows.begin; });
      strip.rows.begin = region.rows.begin;
    }
    if (strip.rows.end > region.rows.end) {
      part([&](Strip& piece) { piece.rows.begin = region.rows.end; });
      strip.rows.end = region.rows.end;
    }
    if (strip.keys.begin < region.keys.begin) {
      part([&](Strip& piece) { piece.keys = piece.keys & Interval{-far_away, region.keys.begin}; });
      strip.keys.begin = region.keys.begin;
    }
    if (strip.keys.end > region.keys.end) {
      part([&](Strip& piece) { piece.keys = piece.keys & Interval{region.keys.end, far_away}; });
      strip.keys.end = region.keys.end;
    }
    if (strip.lows + strip.highs + region.lows + region.highs > Strip::max_edges) {  // no room: decide pair by pair
      strip.masked = true;
      return f(whole);
    }
    for (int e = 0; e < region.lows; ++e) {
      part([&](Strip& piece) { piece.add_high(region.low[e]); });
      strip.add_low(region.low[e]);
    }
    for (int e = 0; e < region.highs; ++e) {
      part([&](Strip& piece) { piece.add_low(region.high[e]); });
      strip.add_high(region.high[e]);
    }
  }

  /// Whether strip and region share no pair in the tile's rows.
  static bool apart(const Strip& strip, const Region& region, const Progression& tile) {
    const Interval rows = steps_at(strip.rows & region.rows, tile);
    if (rows.empty()) return true;
    const std::int64_t first = tile.position + rows.begin * tile.step;
    const std::int64_t last = tile.position + (rows.end - 1) * tile.step;
    const Interval hull{strip.interval(first).begin, strip.interval(last).end};
    return (hull & Interval{region.interval(first).begin, region.interval(last).end}).empty();
  }

  bool masked_ = false;
  int count_ = 0;
  Region region_[max_regions];
};

/// Returns y below m with x y = 1 (mod m), for coprime x and m.
constexpr std::int64_t inverse_modulo(std::int64_t x, std::int64_t m) {
  std::int64_t a = x % m, b = m, u = 1, v = 0;  // a = u x, b = v x (mod m)
  while (a > 1) {
    const std::int64_t q = b / a, c = b - q * a, w = v - q * u;
    b = a, v = u, a = c, u = w;
  }
  return m == 1 ? 0 : floor_mod(u, m);
}

/// Returns x y mod m for x and y from 0 to m, and m below 2^62.
constexpr std::int64_t multiply_modulo(std::int64_t x, std::int64_t y, std::int64_t m) {
  if (m < std::int64_t{1} << 31) return x * y % m;
  std::int64_t product = 0;
  for (; y > 0; y >>= 1) {
    if (y & 1) product = (product + x) % m;
    x = 2 * x % m;
  }
  return product;
}

/// Calls f(const Progression&) for the keys of a strip with positions in [hull), at most once per piece of the map.
template <class F>
void for_each_run(const PositionMap& keys, const Strip& strip, Interval hull, F&& f) {
  // Rows t of a piece with position + t * stride = phase (mod modulus): every `period`-th row from a first one on.
  const std::int64_t common = keys.stride == 1 ? 1 : std::gcd(strip.modulus, keys.stride);
  const std::int64_t period = strip.modulus / common, inverse = inverse_modulo(keys.stride / common, period);
  for (int n = 0; n < 2; ++n) {
    const PositionMap::Piece piece = keys.piece(n);
    if (piece.count <= 0) continue;
    const std::int64_t apart = floor_mod(strip.phase - piece.position, strip.modulus);
    if (apart % common != 0) continue;
    const std::int64_t start = multiply_modulo(apart / common, inverse, period);
    const auto row_at = [&](std::int64_t position) {
      const std::int64_t row = ceil_div(position - piece.position, keys.stride);
      return row < 0 ? 0 : row > piece.count ? piece.count : row;
    };
    const std::int64_t first = row_at(hull.begin), last = row_at(hull.end);
    const std::int64_t begin = first + floor_mod(start - first, period);
    if (begin >= last) continue;
    f(Progression{piece.row + begin, period, ceil_div(last - begin, period), piece.position + begin * keys.stride,
                  period * keys.stride});
  }
}

/// Calls f(const Strip&) for every strip that rows of `tile` visit in query head h. `tile` is from the schedule's
/// tiling. A pair occurs once per multiplicity, or once with the logarithm of its multiplicity.
template <class F>
void for_each_strip(const AttentionSchedule& s, std::int64_t h, const Progression& tile, F&& f) {
  if (tile.count == 0 || s.keys.count == 0) return;
  Strip base;
  if (s.left != unbounded) base.add_low({1, -s.left});
  if (s.right != unbounded) base.add_high({1, s.right + 1});
  base.documents = s.documents;
  base.document_count = s.document_count;
  const std::int64_t first = s.keys.position(0), last = s.keys.position(s.keys.count - 1);
  const TileOfHead at{tile, h, s.heads, s.flipped, {first, last + 1}};
  for (int t = 0; t < s.term_count; ++t) {
    if (!s.term[t].visited) continue;
    const EarlierTerms earlier(s.term, t, at);
    Strip own = base;
    own.term = t;
    add_band(s.term[t], s.flipped, own);
    for_each_term_strip(s.term[t], at, own, [&](Strip& strip) { earlier.subtract(strip, tile, f); });
  }
}

/// Calls f(strip, rows, run) for all runs of keys that some row of `tile` visits in query head h; `rows` are the tile's
/// steps in the strip.
template <class F>
void for_each_run_of_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, F&& f) {
  for_each_strip(schedule, h, tile, [&](const Strip& strip) {
    const Interval hull = hull_of(strip, tile);
    if (hull.empty()) return;
    const Interval rows = rows_of(strip, tile);
    for_each_run(schedule.keys, strip, hull, [&](const Progression& run) { f(strip, rows, run); });
  });
}

/// Lows (or highs) of a strip that matter between two rows. A bound matters if it is tighter than the run's own end for
/// some row. It is dropped if another bound is tighter for all rows.
class TightEdges {
 public:
  /// `sign` is 1 for lows and -1 for highs, so a larger sign * x is tighter. `first` and `last` are positions of rows,
  /// `resting` is a bound common to all rows.
  TightEdges(const Edge* edges, int count, std::int64_t sign, std::int64_t first, std::int64_t last,
             std::int64_t resting) {
    const std::int64_t tightest = sign > 0 ? last : first, loosest = sign > 0 ? first : last;
    std::array<Edge, Strip::max_edges> found;
    int many = 0;
    for (int e = 0; e < count; ++e)
      if (sign * edges[e].at(tightest) > sign * resting) found[static_cast<std::size_t>(many++)] = edges[e];
    for (int e = 0; e < many; ++e) {
      const Edge& edge = found[static_cast<std::size_t>(e)];
      bool decides = true;
      for (int other = 0; other < many && decides; ++other) {
        const std::int64_t always = sign * found[static_cast<std::size_t>(other)].at(loosest),
                           at_most = sign * edge.at(tightest);
        decides = other == e || always < at_most || (always == at_most && other > e);
      }
      if (!decides) continue;
      if (edge.step == 1)
        moving_ = edge.add, moves_ = true;
      else
        block_ = edge, ++blocks_;
    }
  }
  bool fits() const { return blocks_ <= 1; }
  bool none() const { return !moves_ && blocks_ == 0; }
  /// Writes the bounds into those of a run.
  void put(std::int64_t& moving, Edge& block) const {
    if (moves_) moving = moving_;
    if (blocks_ > 0) block = block_;
  }

 private:
  bool moves_ = false;
  std::int64_t moving_ = 0;
  int blocks_ = 0;
  Edge block_;
};

/// Calls f(strip, run) for the runs of `keys`. If several block bounds matter on one side, it splits the rows until one
/// bound per side is enough.
template <class F>
void expand_run(const Strip& strip, const Progression& tile, Interval rows, const Progression& keys, const F& f) {
  const std::int64_t first = tile.position + rows.begin * tile.step, last = tile.position + (rows.end - 1) * tile.step;
  const TightEdges lows(strip.low, strip.lows, 1, first, last, keys.position),
      highs(strip.high, strip.highs, -1, first, last, keys.last_position() + 1);
  if (!lows.fits() || !highs.fits()) {  // for a single row, one bound is the tightest
    const std::int64_t middle = rows.begin + (rows.end - rows.begin) / 2;
    expand_run(strip, tile, {rows.begin, middle}, keys, f);
    return expand_run(strip, tile, {middle, rows.end}, keys, f);
  }
  AttentionRun run{.keys = keys, .rows = rows};
  lows.put(run.low, run.low_block);
  highs.put(run.high, run.high_block);
  bool documents = false;
  if (strip.documents) {
    const Interval of_first = document_of(strip.documents, strip.document_count, first),
                   of_last = document_of(strip.documents, strip.document_count, last);
    documents = of_first.begin != of_last.begin || of_first.end != of_last.end;
    // Even if all these rows share one document, other rows of the tile may see keys outside it.
    documents = documents || of_first.begin > keys.position || of_first.end <= keys.last_position();
  }
  const bool whole = rows.begin == 0 && rows.end == tile.count && lows.none() && highs.none() && !documents;
  run.flags = static_cast<std::uint8_t>((strip.masked ? AttentionRun::masked : 0) |
                                        (documents ? AttentionRun::documents : 0) | (whole ? AttentionRun::whole : 0));
  run.term = static_cast<std::uint8_t>(strip.term);
  run.part = static_cast<std::uint8_t>(strip.part);
  run.period = static_cast<std::uint8_t>(strip.period);
  f(strip, run);
}

/// Calls f(strip, run) for every run of `tile` in query head h, in the order of visits. The strip owns the table of
/// run.period logarithms.
template <class F>
void expand_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, const F& f) {
  for_each_run_of_tile(schedule, h, tile, [&](const Strip& strip, Interval rows, const Progression& keys) {
    expand_run(strip, tile, rows, keys, f);
  });
}

}  // namespace poolgrad::kernels
