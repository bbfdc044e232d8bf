// Strips of blocks: at fixed offsets, listed, or drawn. Neighbouring blocks are one strip.
#pragma once

#include "kernels/attention_tile.h"

namespace poolgrad::kernels {

template <class F>
POOLGRAD_HD void for_each_offset_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  const int begin = term.set_begin[tile.h % term.sets], end = term.set_begin[tile.h % term.sets + 1];
  const auto visit = [&](std::int64_t first, std::int64_t last) {
    Strip strip = base;
    strip.add_low({term.size, first * term.size});
    strip.add_high({term.size, (last + 1) * term.size});
    f(strip);
  };
  const Interval hull = term.step > 1 ? hull_of(base, tile.rows) & tile.keys : Interval{};
  for (int n = 0; n < end - begin; ++n) {  // ascending in what is visited
    const auto run = term.run[tile.flipped ? end - 1 - n : begin + n];
    std::int64_t first = tile.flipped ? -run.last : run.first, last = tile.flipped ? -run.first : run.last;
    if (term.step == 1) {
      visit(first, last);
      continue;
    }
    if (hull.empty()) return;
    // Runs may be longer than any sequence: only what is there is walked through.
    const std::int64_t nearest = floor_div(hull.begin, term.size) - floor_div(tile.rows.last_position(), term.size);
    const std::int64_t farthest = floor_div(hull.end - 1, term.size) - floor_div(tile.rows.position, term.size);
    if (first < nearest) first += ceil_div(nearest - first, term.step) * term.step;
    for (last = last < farthest ? last : farthest; first <= last; first += term.step) visit(first, first);
  }
}

/// Calls f(block, strip) for the blocks of rows of the tile; the strip is for the rows of the block.
template <class F>
POOLGRAD_HD void for_each_row_block(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  Strip strip = base;
  const std::int64_t last = floor_div(tile.rows.last_position(), term.size);
  for (std::int64_t block = floor_div(tile.rows.position, term.size); block <= last; ++block) {
    strip.rows = base.rows & Interval{block * term.size, (block + 1) * term.size};
    if (!rows_of(strip, tile.rows).empty()) f(block, strip);
  }
}

template <class F>
POOLGRAD_HD void for_each_listed_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
  const std::int64_t blocks = tile.flipped ? term.block_columns : term.block_rows;
  const std::int64_t* begins = (tile.flipped ? term.column_begin : term.row_begin) + tile.h % term.lists * (blocks + 1);
  const std::int32_t* list = tile.flipped ? term.rows : term.columns;
  for_each_row_block(term, tile, base, [&](std::int64_t block, Strip& strip) {
    if (block < 0 || block >= blocks) return;
    for (std::int64_t n = begins[block]; n < begins[block + 1];) {
      std::int64_t next = n + 1;
      while (next < begins[block + 1] && list[next] == list[next - 1] + 1) ++next;
      strip.keys = base.keys & Interval{list[n] * term.size, (list[next - 1] + 1) * term.size};
      if (!strip.keys.empty()) f(strip);
      n = next;
    }
  });
}

template <class F>
POOLGRAD_HD void for_each_random_strip(const AttentionTerm& term, const TileOfHead& tile, const Strip& base, F&& f) {
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

}  // namespace poolgrad::kernels
