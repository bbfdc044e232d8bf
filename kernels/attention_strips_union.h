// Unions: what the strips of one term leave over when those of earlier terms of its group have been taken away.
#pragma once

#include "kernels/attention_strips.h"

namespace poolgrad::kernels {

/// The term's own band, on the rows' side.
POOLGRAD_HD inline void add_band(const AttentionTerm& term, bool flipped, Strip& strip) {
  const std::int64_t left = flipped ? term.right : term.left, right = flipped ? term.left : term.right;
  if (left != unbounded) strip.add_low({1, -left});
  if (right != unbounded) strip.add_high({1, right + 1});
}

/// A strip of all residues: rows x keys between edges.
struct Region {
  static constexpr int max_edges = 2;
  Interval rows, keys;
  int lows = 0, highs = 0;
  Edge low[max_edges], high[max_edges];
};

/// The terms of the group of term[t] that come before it, as regions where they are few, else as a mask.
class EarlierTerms {
 public:
  static constexpr int max_regions = 8;

  POOLGRAD_HD EarlierTerms(const AttentionTerm* term, int t, const TileOfHead& tile) {
    for (int e = 0; e < t && !masked_; ++e)
      if (term[e].group == term[t].group) take_in(term[e], tile);
  }

  /// Calls f(const Strip&) for disjoint strips that make up `strip` without the earlier terms. May set strip.masked;
  /// leaves its edges alone, from which more strips may be made.
  template <class F>
  POOLGRAD_HD void subtract(Strip& strip, const Progression& tile, F&& f) const {
    if (masked_) strip.masked = true;
    const Strip& whole = strip;
    if (masked_ || count_ == 0) return f(whole);
    Strip rest = strip;
    carve(rest, 0, tile, f);
  }

 private:
  POOLGRAD_HD void take_in(const AttentionTerm& term, const TileOfHead& tile) {
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
      if (count_ == max_regions) {
        masked_ = true;
        return;
      }
      Region& region = region_[count_++];
      region.rows = strip.rows;
      region.keys = strip.keys;
      region.lows = strip.lows;
      region.highs = strip.highs;
      for (int e = 0; e < strip.lows; ++e) region.low[e] = strip.low[e];
      for (int e = 0; e < strip.highs; ++e) region.high[e] = strip.high[e];
    });
  }

  template <class F>
  POOLGRAD_HD void carve_if_any(Strip& piece, int n, const Progression& tile, F& f) const {
    if (!hull_of(piece, tile).empty()) carve(piece, n, tile, f);
  }

  /// Takes the regions from n on away. Each constraint of a region splits off the part that breaks it and keeps to
  /// those before, so the parts are disjoint whatever the edges do.
  template <class F>
  POOLGRAD_HD void carve(Strip& strip, int n, const Progression& tile, F& f) const {
    while (n < count_ && apart(strip, region_[n], tile)) ++n;
    const Strip& whole = strip;
    if (n == count_) return f(whole);
    const Region& region = region_[n];
    const auto part = [&](auto&& change) {
      Strip piece = strip;
      change(piece);
      carve_if_any(piece, n + 1, tile, f);
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
    if (strip.lows + strip.highs + region.lows + region.highs > Strip::max_edges) {  // no room: pair by pair
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

  /// Whether the tile's rows see nothing in common.
  POOLGRAD_HD static bool apart(const Strip& strip, const Region& region, const Progression& tile) {
    Strip other;
    other.rows = strip.rows & region.rows;
    const Interval rows = rows_of(other, tile);
    if (rows.empty()) return true;
    const std::int64_t first = tile.position + rows.begin * tile.step;
    const std::int64_t last = tile.position + (rows.end - 1) * tile.step;
    Interval hull = Interval{strip.interval(first).begin, strip.interval(last).end} & region.keys;
    for (int e = 0; e < region.lows; ++e) hull = hull & Interval{region.low[e].at(first), far_away};
    for (int e = 0; e < region.highs; ++e) hull = hull & Interval{-far_away, region.high[e].at(last)};
    return hull.empty();
  }

  bool masked_ = false;
  int count_ = 0;
  Region region_[max_regions];
};

}  // namespace poolgrad::kernels
