// Strips: keys that the rows of a tile visit together, with an interval per row; and the strips of each kind of term.
// Host only: kernels read programs made of strips, kernels/schedule/program.h.
#pragma once

#include <algorithm>

#include "kernels/functors/attention_term.h"

namespace poolgrad::kernels {

/// Pairs of rows and keys between edges. No edge decreases from one row to the next.
struct Region {
  static constexpr int max_edges = 8;
  Interval rows = everywhere;  // positions of rows in the region
  Interval keys = everywhere;
  int lows = 0, highs = 0;
  Edge low[max_edges], high[max_edges];  // key >= every low.at(row), key < every high.at(row)

  /// Key positions that a row of `rows` sees. Empty if it ends before it begins.
  Interval interval(std::int64_t row) const {
    Interval seen = keys;
    for (int e = 0; e < lows; ++e) seen.begin = std::max(seen.begin, low[e].at(row));
    for (int e = 0; e < highs; ++e) seen.end = std::min(seen.end, high[e].at(row));
    return seen;
  }
  /// Adds key >= edge.at(row), or key < edge.at(row). Of two edges with one step the tighter stays. Returns false if
  /// full.
  bool add_low(Edge edge) { return add(low, lows, edge, 1); }
  bool add_high(Edge edge) { return add(high, highs, edge, -1); }

 private:
  static bool add(Edge* edges, int& count, Edge edge, int sign) {
    for (int e = 0; e < count; ++e)
      if (edges[e].step == edge.step) {
        if (sign * edge.add > sign * edges[e].add) edges[e].add = edge.add;
        return true;
      }
    if (count == max_edges) return false;
    edges[count++] = edge;
    return true;
  }
};

/// Keys that the rows of a tile visit together: positions = phase (mod modulus). Each row sees an interval of them.
struct Strip : Region {
  static constexpr int max_period = AttentionTerm::max_period;
  std::int64_t modulus = 1, phase = 0;
  const std::int64_t* documents = nullptr;
  int document_count = 0;
  bool masked = false;     // AttentionSchedule::keeps() decides pair by pair
  int term = 0, part = 0;  // term of the schedule; branch of the term
  int period = 0;          // log_multiplicity[floor_mod(key position, period)] is added to scores; 0: none
  double log_multiplicity[max_period];

  /// The region's interval, limited to the document of the row.
  Interval interval(std::int64_t row) const {
    const Interval seen = Region::interval(row);
    return documents ? seen & document_of(documents, document_count, row) : seen;
  }
};

/// The steps [begin, end) of a tile whose rows lie at these positions.
inline Interval steps_at(const Interval& rows, const Progression& tile) {
  const std::int64_t first = ceil_div(rows.begin - tile.position, tile.step);
  const std::int64_t last = ceil_div(rows.end - tile.position, tile.step);
  return Interval{first, last} & Interval{0, tile.count};
}
/// The steps of the tile whose rows belong to the strip.
inline Interval rows_of(const Strip& strip, const Progression& tile) { return steps_at(strip.rows, tile); }

/// Smallest interval of positions that holds all keys of the strip seen by the tile's rows.
inline Interval hull_of(const Strip& strip, const Progression& tile) {
  const Interval rows = rows_of(strip, tile);
  if (rows.empty()) return {0, 0};
  return {strip.interval(tile.position + rows.begin * tile.step).begin,
          strip.interval(tile.position + (rows.end - 1) * tile.step).end};
}

/// A tile of rows in one head: the input for strips.
struct TileOfHead {
  Progression rows;
  std::int64_t h, heads;
  bool flipped;   // rows are keys and visit queries
  Interval keys;  // positions that can be visited
};

// Blocks at fixed offsets, listed blocks, or random blocks. Adjacent blocks share one strip.

template <class F>
void for_each_offset_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  const int begin = term.set_begin[tile.h % term.sets], end = term.set_begin[tile.h % term.sets + 1];
  const auto visit = [&](std::int64_t first, std::int64_t last) {
    Strip strip = base;
    strip.add_low({term.size, first * term.size});
    strip.add_high({term.size, (last + 1) * term.size});
    f(strip);
  };
  const Interval hull = term.step > 1 ? hull_of(base, tile.rows) & tile.keys : Interval{};
  for (int n = 0; n < end - begin; ++n) {  // in ascending order of visited positions
    const auto run = term.run[tile.flipped ? end - 1 - n : begin + n];
    std::int64_t first = tile.flipped ? -run.last : run.first, last = tile.flipped ? -run.first : run.last;
    if (term.step == 1) {
      visit(first, last);
      continue;
    }
    if (hull.empty()) return;
    // Runs may be longer than any sequence: the loop covers only existing blocks.
    const std::int64_t nearest = floor_div(hull.begin, term.size) - floor_div(tile.rows.last_position(), term.size);
    const std::int64_t farthest = floor_div(hull.end - 1, term.size) - floor_div(tile.rows.position, term.size);
    if (first < nearest) first += ceil_div(nearest - first, term.step) * term.step;
    for (last = last < farthest ? last : farthest; first <= last; first += term.step) visit(first, first);
  }
}

/// Calls f(block, strip) for the blocks of rows of the tile; the strip is limited to the rows of the block.
template <class F>
void for_each_row_block(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  Strip strip = base;
  const std::int64_t last = floor_div(tile.rows.last_position(), term.size);
  for (std::int64_t block = floor_div(tile.rows.position, term.size); block <= last; ++block) {
    strip.rows = base.rows & Interval{block * term.size, (block + 1) * term.size};
    if (!rows_of(strip, tile.rows).empty()) f(block, strip);
  }
}

template <class F>
void for_each_listed_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  const std::int64_t blocks = tile.flipped ? term.block_columns : term.block_rows;
  const std::int64_t* begins = (tile.flipped ? term.column_begin : term.row_begin) + tile.h % term.lists * (blocks + 1);
  const std::int32_t* list = tile.flipped ? term.rows : term.columns;
  const std::int32_t* bitmap = tile.flipped ? term.row_bitmap : term.column_bitmap;
  const auto has_bitmap = [bitmap](std::int64_t n) { return bitmap != nullptr && bitmap[n] >= 0; };
  for_each_row_block(term, tile, base, [&](std::int64_t block, Strip& strip) {
    if (block < 0 || block >= blocks) return;
    for (std::int64_t n = begins[block]; n < begins[block + 1];) {
      std::int64_t next = n + 1;
      while (next < begins[block + 1] && list[next] == list[next - 1] + 1 && has_bitmap(next) == has_bitmap(n)) ++next;
      strip.masked = has_bitmap(n);
      strip.keys = base.keys & Interval{list[n] * term.size, (list[next - 1] + 1) * term.size};
      if (!strip.keys.empty()) f(strip);
      n = next;
    }
  });
}

template <class F>
void for_each_random_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  const std::uint64_t key = term.draw_key(tile.h);
  for_each_row_block(term, tile, base, [&](std::int64_t block, Strip& strip) {
    strip.keys = base.keys;
    const Interval hull = hull_of(strip, tile.rows) & tile.keys;
    if (hull.empty()) return;
    const std::int64_t end = floor_div(hull.end - 1, term.size) + 1;
    const auto drawn = [&](std::int64_t other) {
      return tile.flipped ? term.draws(key, other, block) : term.draws(key, block, other);
    };
    for (std::int64_t first = floor_div(hull.begin, term.size); first < end;) {
      if (!drawn(first)) {
        ++first;
        continue;
      }
      std::int64_t next = first + 1;
      while (next < end && drawn(next)) ++next;
      strip.keys = base.keys & Interval{first * term.size, next * term.size};
      f(strip);
      first = next + 1;
    }
  });
}

// Dilated branches (LongNet, Ding et al. 2023). The rows of a tile are one residue class, so a fixed set of branches
// covers them. Each branch adds the keys of its own residue in the row's segment.

/// log n for n up to the maximum number of branches.
inline double log_of_count(int n) {
  constexpr double logs[AttentionTerm::max_branches + 1] = {0.0,
                                                            0.0,
                                                            0.69314718055994530942,
                                                            1.0986122886681096914,
                                                            1.3862943611198906188,
                                                            1.6094379124341003746,
                                                            1.7917594692280550008,
                                                            1.9459101490553133051,
                                                            2.0794415416798359283,
                                                            2.1972245773362193828,
                                                            2.3025850929940456840,
                                                            2.3978952727983705441,
                                                            2.4849066497880003102,
                                                            2.5649493574615367361,
                                                            2.6390573296152586145,
                                                            2.7080502011022100660,
                                                            2.7725887222397812377};
  return logs[n];
}

/// Nested branches: the row class belongs to a prefix of the branches. In the segment of the previous branch, the keys
/// of a branch are a subset of the previous branch's keys. So branch b visits only the rest of its segment. A key's
/// multiplicity is the number of branches from b on that have it: periodic in the key position.
template <class F>
void for_each_shell(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  int active = 0;
  while (active < term.branches &&
         floor_mod(tile.rows.position, term.dilation_rate[active]) == tile.h % term.dilation_rate[active])
    ++active;
  for (int b = 0; b < active; ++b) {
    const std::int64_t w = term.segment_length[b], inner = b > 0 ? term.segment_length[b - 1] : 0;
    if (w == inner) continue;
    Strip strip = base;
    strip.part = b;
    strip.modulus = term.dilation_rate[b];
    strip.phase = tile.h % strip.modulus;
    if (b + 1 < active && !term.unite) {
      const auto period = static_cast<int>(term.dilation_rate[active - 1]);
      std::int8_t count[Strip::max_period] = {};
      for (int other = b; other < active; ++other) {
        const auto r = static_cast<int>(term.dilation_rate[other]);
        for (auto j = static_cast<int>(tile.h % r); j < period; j += r) ++count[j];
      }
      for (int j = 0; j < period; ++j) strip.log_multiplicity[j] = log_of_count(count[j]);
      strip.period = period;
    }
    if (inner == 0) {
      strip.add_low({w, 0});
      strip.add_high({w, w});
      f(strip);
      continue;
    }
    Strip before = strip;
    before.add_low({w, 0});
    before.add_high({inner, 0});
    f(before);
    strip.add_low({inner, inner});
    strip.add_high({w, w});
    f(strip);
  }
}

template <class F>
void for_each_dilated_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  if (term.nested) return for_each_shell(term, tile, base, f);
  for (int b = 0; b < term.branches; ++b) {
    if ((term.visited_branches >> b & 1) == 0 || (term.grouped && b != term.branch_of(tile.h, tile.heads))) continue;
    const std::int64_t w = term.segment_length[b], r = term.dilation_rate[b];
    const std::int64_t phase = term.phase(b, tile.h, tile.heads);
    Strip strip = base;
    strip.part = b;
    strip.masked = term.unite && !term.grouped && b > 0;
    strip.modulus = r;
    if (w % r == 0) {
      strip.phase = phase;
      strip.add_low({w, 0});
      strip.add_high({w, w});
      if (floor_mod(tile.rows.position, r) == phase) f(strip);
      continue;
    }
    // Phases restart with every segment.
    for (std::int64_t s = floor_div(tile.rows.position, w); s <= floor_div(tile.rows.last_position(), w); ++s) {
      strip.phase = floor_mod(s * w + phase, r);
      strip.rows = base.rows & Interval{s * w, s * w + w};
      strip.keys = base.keys & Interval{s * w, s * w + w};
      if (floor_mod(tile.rows.position, r) == strip.phase) f(strip);
    }
  }
}

/// Calls f(const Strip&) for the strips of `term` on the tile's rows, all derived from `base` (bands and documents).
template <class F>
void for_each_term_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  using Kind = AttentionTerm::Kind;
  Strip strip = base;
  switch (term.kind) {
    case Kind::dilated: return for_each_dilated_strip(term, tile, base, f);
    case Kind::offsets: return for_each_offset_strip(term, tile, base, f);
    case Kind::listed: return for_each_listed_strip(term, tile, base, f);
    case Kind::random: return for_each_random_strip(term, tile, base, f);
    case Kind::columns: (tile.flipped ? strip.rows : strip.keys).end = term.size; break;
    case Kind::rows: (tile.flipped ? strip.keys : strip.rows).end = term.size; break;
    case Kind::segment:
      strip.add_low({term.size, 0});
      strip.add_high({term.size, term.size});
      break;
    case Kind::residue:
      strip.modulus = term.size;
      strip.phase = floor_mod(tile.rows.position, term.size);
      break;
    default: break;
  }
  f(strip);
}

}  // namespace poolgrad::kernels
