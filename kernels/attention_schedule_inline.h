// The inline half of kernels/attention_schedule.h.
#pragma once

#include "kernels/attention_schedule.h"
#include "kernels/attention_strips_union.h"

namespace poolgrad::kernels {

/// y with x y = 1 (mod m), for x and m without a common factor; below m.
POOLGRAD_HD constexpr std::int64_t inverse_modulo(std::int64_t x, std::int64_t m) {
  std::int64_t a = x % m, b = m, u = 1, v = 0;  // a = u x, b = v x (mod m)
  while (a > 1) {
    const std::int64_t q = b / a, c = b - q * a, w = v - q * u;
    b = a, v = u, a = c, u = w;
  }
  return m == 1 ? 0 : floor_mod(u, m);
}

/// x y mod m for x and y from 0 to m, and m below 2^62.
POOLGRAD_HD constexpr std::int64_t multiply_modulo(std::int64_t x, std::int64_t y, std::int64_t m) {
  if (m < std::int64_t{1} << 31) return x * y % m;
  std::int64_t product = 0;
  for (; y > 0; y >>= 1) {
    if (y & 1) product = (product + x) % m;
    x = 2 * x % m;
  }
  return product;
}

POOLGRAD_HD inline Progression RowTiling::tile(std::int64_t number) const {
  const int n = number < tiles_[0] ? 0 : 1;
  const PositionMap::Piece piece = map_.piece(n);
  if (n == 1) number -= tiles_[0];
  const std::int64_t span = first_part_[n] + number / classes_, turn = number % classes_;
  const std::int64_t cut = floor_div(span, parts_), whole = origin_[n] + cut * cut_;
  const std::int64_t begin = whole + (span - cut * parts_) * part_;
  const std::int64_t end = begin + part_ < whole + cut_ ? begin + part_ : whole + cut_;
  const auto row_at = [&](std::int64_t position) {
    const std::int64_t row = ceil_div(position - piece.position, map_.stride);
    return row < 0 ? 0 : row > piece.count ? piece.count : row;
  };
  const std::int64_t first = row_at(begin), last = row_at(end);
  const std::int64_t start = first + floor_mod(turn - first, classes_);
  const std::int64_t count = start < last ? ceil_div(last - start, classes_) : 0;
  return {piece.row + start, classes_, count, piece.position + start * map_.stride, classes_ * map_.stride};
}

template <class F>
POOLGRAD_HD void for_each_run(const PositionMap& keys, const Strip& strip, Interval hull, F&& f) {
  // Rows t of a piece with position + t * stride = phase (mod modulus): every `period`-th from some start on.
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

POOLGRAD_HD inline Interval steps_seen(const Strip& strip, const Progression& run, std::int64_t position) {
  const Interval seen = strip.interval(position);
  const auto step_at = [&](std::int64_t key) {
    const std::int64_t step = ceil_div(key - run.position, run.step);
    return step < 0 ? 0 : step > run.count ? run.count : step;
  };
  if (position < strip.rows.begin || position >= strip.rows.end) return {0, 0};
  return {step_at(seen.begin), step_at(seen.end)};
}

template <class F>
POOLGRAD_HD void for_each_key_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile,
                                   std::int64_t limit, F&& f) {
  if (tile.count == 0) return;
  schedule.for_each_strip(h, tile, [&](const Strip& strip) {
    const Interval hull = hull_of(strip, tile);
    if (hull.empty()) return;
    for_each_run(schedule.keys, strip, hull, [&](const Progression& run) {
      for (std::int64_t t = 0; t < run.count; t += limit)
        f(strip, Progression{run.row + t * run.stride, run.stride, run.count - t < limit ? run.count - t : limit,
                             run.position + t * run.step, run.step});
    });
  });
}

template <class F>
POOLGRAD_HD void AttentionSchedule::for_each_strip(std::int64_t h, const Progression& tile, F&& f) const {
  if (tile.count == 0 || keys.count == 0) return;
  Strip base;
  if (left != unbounded) base.add_low({1, -left});
  if (right != unbounded) base.add_high({1, right + 1});
  base.documents = documents;
  base.document_count = document_count;
  const std::int64_t first = keys.position(0), last = keys.position(keys.count - 1);
  const TileOfHead at{tile, h, heads, flipped, {first, last + 1}};
  for (int t = 0; t < term_count; ++t) {
    if (!term[t].visited) continue;
    const EarlierTerms earlier(term, t, at);
    Strip own = base;
    own.term = t;
    add_band(term[t], flipped, own);
    for_each_term_strip(term[t], at, own, [&](Strip& strip) { earlier.subtract(strip, tile, f); });
  }
}

POOLGRAD_HD inline bool AttentionSchedule::keeps(const Strip& strip, std::int64_t h, std::int64_t row,
                                                 std::int64_t key) const {
  const std::int64_t query = flipped ? key : row, visited = flipped ? row : key;
  for (int t = 0; t < strip.term; ++t)
    if (term[t].group == term[strip.term].group && term[t].multiplicity(h, heads, query, visited) > 0) return false;
  if (term[strip.term].unite && !term[strip.term].nested)
    for (int b = 0; b < strip.part; ++b)
      if (term[strip.term].covers(b, h, heads, query, visited)) return false;
  return true;
}

}  // namespace poolgrad::kernels
