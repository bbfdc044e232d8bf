// The inline half of kernels/attention_schedule.h.
#pragma once

#include "kernels/attention_schedule.h"

namespace poolgrad::kernels {

POOLGRAD_HD inline Interval Strip::interval(std::int64_t row) const {
  Interval seen = keys;
  for (int e = 0; e < lows; ++e) {
    const std::int64_t at = low[e].at(row);
    if (at > seen.begin) seen.begin = at;
  }
  for (int e = 0; e < highs; ++e) {
    const std::int64_t at = high[e].at(row);
    if (at < seen.end) seen.end = at;
  }
  if (documents) {
    Interval document{documents[0], documents[0]};
    if (row >= documents[document_count]) {
      document = {documents[document_count], documents[document_count]};
    } else if (row >= documents[0]) {
      int below = 0, above = document_count;  // documents[below] <= row < documents[above]
      while (above - below > 1) {
        const int middle = below + (above - below) / 2;
        (documents[middle] <= row ? below : above) = middle;
      }
      document = {documents[below], documents[above]};
    }
    if (document.begin > seen.begin) seen.begin = document.begin;
    if (document.end < seen.end) seen.end = document.end;
  }
  return seen;
}

POOLGRAD_HD inline Progression RowTiling::tile(std::int64_t number) const {
  const int n = number < tiles_[0] ? 0 : 1;
  const PositionMap::Piece piece = map_.piece(n);
  if (n == 1) number -= tiles_[0];
  const std::int64_t span = number / classes_, turn = number % classes_;
  const std::int64_t whole = (first_cut_[n] + span / parts_) * cut_;
  const std::int64_t begin = whole + span % parts_ * part_;
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
  for (int n = 0; n < 2; ++n) {
    const PositionMap::Piece piece = keys.piece(n);
    if (piece.count <= 0) continue;
    // Rows t of the piece with piece.position + t * stride = phase (mod modulus): every `period`-th from `start` on.
    std::int64_t start = floor_mod(strip.phase - piece.position, strip.modulus), period = strip.modulus;
    if (keys.stride != 1 && strip.modulus != 1) {
      period = strip.modulus / std::gcd(strip.modulus, keys.stride);
      std::int64_t t = 0;
      while (t < period && floor_mod(piece.position + t * keys.stride - strip.phase, strip.modulus) != 0) ++t;
      if (t == period) continue;
      start = t;
    }
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
    // The rows of the tile that the strip is for; the ends of their intervals never decrease.
    std::int64_t first = ceil_div(strip.rows.begin - tile.position, tile.step), last = tile.count;
    if (first < 0) first = 0;
    if (strip.rows.end != unbounded) {
      const std::int64_t end = ceil_div(strip.rows.end - tile.position, tile.step);
      if (end < last) last = end;
    }
    if (first >= last) return;
    const Interval hull{strip.interval(tile.position + first * tile.step).begin,
                        strip.interval(tile.position + (last - 1) * tile.step).end};
    if (hull.begin >= hull.end) return;
    for_each_run(schedule.keys, strip, hull, [&](const Progression& run) {
      for (std::int64_t t = 0; t < run.count; t += limit)
        f(strip, Progression{run.row + t * run.stride, run.stride, run.count - t < limit ? run.count - t : limit,
                             run.position + t * run.step, run.step});
    });
  });
}

template <class F>
POOLGRAD_HD void AttentionSchedule::for_each_strip(std::int64_t h, const Progression& tile, F&& f) const {
  (void)h, (void)tile;
  Strip strip;
  if (left != unbounded) strip.low[strip.lows++] = {1, -left};
  if (right != unbounded) strip.high[strip.highs++] = {1, right + 1};
  strip.documents = documents;
  strip.document_count = document_count;
  f(strip);
}

}  // namespace poolgrad::kernels
