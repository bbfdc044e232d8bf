// Which pairs of a masked run count: those that no earlier term of the group, nor an earlier branch of a united term,
// has counted (AttentionSchedule::keeps). Between two ends of segments and blocks all rows have the same answer, so it
// is found once for them, and lists are searched by bisection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/schedule/program.h"

namespace poolgrad::kernels::attention {

class CountedBefore {
 public:
  /// For the rows that visit `run`, a part of a masked run of query head h.
  CountedBefore(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h, const Progression& run)
      : s_(schedule), of_(of), h_(h), run_(run) {}

  /// counted[s], for the steps [steps) of the run: whether the pair with the row at `row` has been counted. Returns the
  /// position before which no row differs, of rows that are `step` apart.
  std::int64_t mark(std::int64_t row, std::int64_t step, Interval steps, bool* counted) {
    row_ = row, step_ = step, steps_ = steps, counted_ = counted, until_ = far_away;
    std::fill(counted + steps.begin, counted + steps.end, false);
    const AttentionTerm& own = s_.term[of_.term];
    for (int t = 0; t < of_.term; ++t)
      if (s_.term[t].group == own.group) mark_term(s_.term[t]);
    if (own.unite && !own.nested)
      for (int b = 0; b < of_.part; ++b) mark_branch(own, b, everywhere);
    return until_;
  }

 private:
  void mark_term(const AttentionTerm& term) {
    using Kind = AttentionTerm::Kind;
    Interval seen = everywhere;
    const std::int64_t left = s_.flipped ? term.right : term.left, right = s_.flipped ? term.left : term.right;
    if (left != unbounded) seen.begin = row_ - left;
    if (right != unbounded) seen.end = row_ + right + 1;
    if (left != unbounded || right != unbounded) same_before(row_ + 1);
    switch (term.kind) {
      case Kind::all: return mark_positions(seen);
      case Kind::columns:
      case Kind::rows:
        if ((term.kind == Kind::columns) != s_.flipped) return mark_positions(seen & Interval{-far_away, term.size});
        if (row_ >= term.size) return;
        same_before(term.size);
        return mark_positions(seen);
      case Kind::segment: return mark_positions(seen & block_of_row(term.size));
      case Kind::residue:
        if (step_ % term.size != 0) same_before(row_ + 1);
        return mark_positions(seen, term.size, row_);
      case Kind::dilated:
        for (int b = 0; b < term.branches; ++b) mark_branch(term, b, seen);
        return;
      default: mark_blocks(term, seen);
    }
  }

  void mark_branch(const AttentionTerm& term, int b, Interval seen) {
    if (term.grouped && b != term.branch_of(h_, s_.heads)) return;
    const std::int64_t r = term.dilation_rate[b], phase = term.phase(b, h_, s_.heads);
    const Interval segment = block_of_row(term.segment_length[b]);
    if (step_ % r != 0) same_before(row_ + 1);
    if ((row_ - segment.begin) % r == phase) mark_positions(seen & segment, r, segment.begin + phase);
  }

  void mark_blocks(const AttentionTerm& term, Interval seen) {
    using Kind = AttentionTerm::Kind;
    if (steps_.empty()) return;
    const std::int64_t size = term.size, row = block_of_row(size).begin / size;
    const std::int64_t first = floor_div(run_.position + steps_.begin * run_.step, size),
                       last = floor_div(run_.position + (steps_.end - 1) * run_.step, size);
    const auto mark = [&](std::int64_t begin, std::int64_t end) {
      mark_positions(seen & Interval{begin * size, end * size});
    };
    if (term.kind == Kind::offsets) {
      const std::int64_t set = h_ % term.sets;
      for (int n = term.set_begin[set]; n < term.set_begin[set + 1]; ++n) {
        std::int64_t from = row + (s_.flipped ? -term.run[n].last : term.run[n].first);
        const std::int64_t to = row + (s_.flipped ? -term.run[n].first : term.run[n].last);
        if (term.step == 1) {
          mark(from, to + 1);
          continue;
        }
        if (from < first) from += ceil_div(first - from, term.step) * term.step;
        for (; from <= std::min(to, last); from += term.step) mark(from, from + 1);
      }
    } else if (term.kind == Kind::listed) {
      const std::int64_t blocks = s_.flipped ? term.block_columns : term.block_rows;
      if (row < 0 || row >= blocks) return;
      const std::int64_t* begin =
          (s_.flipped ? term.column_begin : term.row_begin) + h_ % term.lists * (blocks + 1) + row;
      const std::int32_t* list = s_.flipped ? term.rows : term.columns;
      for (auto at = std::lower_bound(list + begin[0], list + begin[1], first); at < list + begin[1] && *at <= last;
           ++at)
        mark(*at, *at + 1);
    } else {
      const std::uint64_t key = term.draw_key(h_);
      for (std::int64_t block = first; block <= last; ++block)
        if (s_.flipped ? term.draws(key, block, row) : term.draws(key, row, block)) mark(block, block + 1);
    }
  }

  /// Steps at these positions, of which those = phase (mod modulus).
  void mark_positions(Interval positions, std::int64_t modulus = 1, std::int64_t phase = 0) {
    const auto step_at = [&](std::int64_t position) {
      return std::clamp(ceil_div(position - run_.position, run_.step), steps_.begin, steps_.end);
    };
    const std::int64_t begin = step_at(positions.begin), end = step_at(positions.end);
    if (begin >= end) return;
    if (modulus == 1) return std::fill(counted_ + begin, counted_ + end, true);
    const std::int64_t step = run_.step % modulus;
    std::int64_t apart = floor_mod(run_.position + begin * run_.step - phase, modulus);
    for (std::int64_t s = begin; s < end; ++s) {
      if (apart == 0) counted_[s] = true;
      if ((apart += step) >= modulus) apart -= modulus;
    }
  }

  Interval block_of_row(std::int64_t size) {
    const std::int64_t begin = floor_div(row_, size) * size;
    same_before(begin + size);
    return {begin, begin + size};
  }
  void same_before(std::int64_t position) { until_ = std::min(until_, position); }

  const AttentionSchedule& s_;
  const AttentionRun& of_;
  const std::int64_t h_;
  const Progression& run_;
  std::int64_t row_ = 0, step_ = 0, until_ = 0;
  Interval steps_{0, 0};
  bool* counted_ = nullptr;
};

/// Calls f(begin, end, counted) for ranges of the rows [rows) of a tile that agree on the steps [steps) of `run`.
template <std::size_t Most, class F>
void for_each_agreement(const AttentionSchedule& schedule, const AttentionRun& of, std::int64_t h,
                        const Progression& tile, Interval rows, const Progression& run, Interval steps, const F& f) {
  CountedBefore before(schedule, of, h, run);
  bool counted[Most];
  for (std::int64_t i = rows.begin, end = 0; i < rows.end; i = end) {
    const std::int64_t position = tile.position + i * tile.step;
    const std::int64_t until = before.mark(position, tile.step, steps, counted);
    end = tile.step == 0 ? rows.end : std::clamp(ceil_div(until - tile.position, tile.step), i + 1, rows.end);
    f(i, end, static_cast<const bool*>(counted));
  }
}

}  // namespace poolgrad::kernels::attention
