// Visits of a tile on tensor cores: groups of rows, the rows of each group that a tile row sees, and additive score
// terms.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/calls.cuh"
#include "kernels/cuda/mma/mma.cuh"

namespace poolgrad::kernels::cuda {

/// Threads of a block, and rows of a tile.
inline constexpr int mma_threads = 128, mma_rows = 64;

/// Rows of one run that a tile visits together, and their common properties.
struct VisitedRows {
  std::int64_t first = 0;           // step of the run
  std::int32_t run = 0, count = 0;  // index in the program, below 2^31
  bool whole = false;               // the group is full, and every row of the tile sees all of it
  std::uint8_t flags = 0, period = 0;

  /// Returns the row in the tensors. It is computed at each use because registers are scarce.
  __device__ std::int64_t row(const AttentionProgram& program, int i) const {
    const Progression& keys = program.run[run].keys;
    return keys.row + (first + i) * keys.stride;
  }
  __device__ TileRows of(const AttentionProgram& program, const Operand& x, std::int64_t batch,
                         std::int64_t head) const {
    return {offset_of(x, batch, head, row(program, 0)), program.run[run].keys.stride * x.row, count};
  }
};
/// Iterates over the groups of up to `Rows` rows that a tile visits, in the order of the program.
template <int Rows = mma_rows>
class Visits {
 public:
  /// Position of the iteration, to resume it elsewhere.
  struct State {
    std::int64_t steps_end = 0;
    Interval all_see{0, 0};
    VisitedRows now;
    std::int32_t end = 0;
  };

  __device__ Visits(const AttentionProgram& program, const Progression& tile, std::int64_t number)
      : program_(program), tile_(tile), end_(static_cast<std::int32_t>(program.tile_begin[number + 1])) {
    now_.run = static_cast<std::int32_t>(program.tile_begin[number]) - 1;
  }
  __device__ Visits(const AttentionProgram& program, const Progression& tile, const State& state)
      : program_(program),
        tile_(tile),
        end_(state.end),
        steps_end_(state.steps_end),
        all_see_(state.all_see),
        now_(state.now) {}
  __device__ State state() const { return {steps_end_, all_see_, now_, end_}; }

  /// Returns the next group; its count is 0 after the last.
  __device__ VisitedRows next() {
    now_.first += now_.count;
    while (now_.first >= steps_end_) {
      if (++now_.run >= end_) {
        now_.count = 0;
        return now_;
      }
      begin(program_.run[now_.run]);
    }
    now_.count = static_cast<std::int32_t>(steps_end_ - now_.first < Rows ? steps_end_ - now_.first : Rows);
    now_.whole = now_.count == Rows && all_see_.begin <= now_.first && now_.first + Rows <= all_see_.end;
    return now_;
  }

 private:
  /// Interval ends never decrease from row to row. The first and last row therefore give the union and the
  /// intersection.
  __device__ void begin(const AttentionRun& run) {
    Interval first{0, run.keys.count}, last = first;
    if (!run.has(AttentionRun::whole)) {
      first = last = {0, 0};
      if (!run.rows.empty()) {
        first = program_.steps_seen(run, run.keys, tile_.position + run.rows.begin * tile_.step);
        last = program_.steps_seen(run, run.keys, tile_.position + (run.rows.end - 1) * tile_.step);
      }
    }
    steps_end_ = last.end;
    all_see_ = {last.begin, first.end};
    if (!run.has(AttentionRun::whole) && (run.rows.begin > 0 || run.rows.end < tile_.count)) all_see_ = {0, 0};
    now_.first = first.begin;
    now_.flags = run.flags;
    now_.period = run.period;
  }

  const AttentionProgram& program_;
  const Progression& tile_;
  std::int32_t end_;
  std::int64_t steps_end_ = 0;
  Interval all_see_{0, 0};
  VisitedRows now_;
};

/// Columns of the scores that row i of the tile sees.
struct Columns {
  int begin, end;

  __device__ bool contain(int column) const { return begin <= column && column < end; }
  /// Returns bit f for column `first` + 8 f. Requires first < 8 and at most 16 fragments.
  __device__ std::uint32_t fragments(int first) const {
    return below((end + 7 - first) / 8) & ~below((begin + 7 - first) / 8);
  }

 private:
  static __device__ std::uint32_t below(int f) { return (1u << f) - 1; }
};
__device__ inline Columns columns_seen(const AttentionProgram& program, const VisitedRows& visited,
                                       const Progression& tile, int i) {
  const Interval steps = steps_of_row(program, program.run[visited.run], tile, i);
  const auto column = [&](std::int64_t step) {
    const std::int64_t apart = step - visited.first;
    return apart < 0 ? 0 : apart < visited.count ? static_cast<int>(apart) : visited.count;
  };
  return {column(steps.begin), column(steps.end)};
}

/// Returns the additive term of a column's scores: the logarithm of the multiplicity of its pairs.
__device__ inline float term_of_column(const AttentionProgram& program, const VisitedRows& visited, int column) {
  const AttentionRun& run = program.run[visited.run];
  return Visit{program, run, 0, 0}.log_multiplicity<float>(visited.first + column);
}

/// Writes the terms of `Rows` columns, if the run has any, from terms[first].
template <int Rows>
__device__ void tell_terms(const Shared<float>& terms, int first, const AttentionProgram& program,
                           const VisitedRows& visited) {
  static_assert(Rows <= mma_threads);
  if (const int i = thread_of_block(); visited.period > 0 && i < Rows)
    terms[first + i] = i < visited.count ? term_of_column(program, visited, i) : 0;
}

/// Rows that a tile visits together, with their place in the tensors.
struct ToldRows : VisitedRows {
  std::int64_t first_row = 0, stride = 1;

  __device__ std::int64_t row(int i) const { return first_row + i * stride; }
  __device__ TileRows of(const Operand& x, std::int64_t batch, std::int64_t head) const {
    return {offset_of(x, batch, head, first_row), stride * x.row, count};
  }
};

/// Like Visits, but one thread finds the groups and shares them through shared memory. This saves the other threads
/// instructions and registers. A barrier must precede each read.
template <int Rows>
class TileBroadcast {
 public:
  using State = typename Visits<Rows>::State;
  static constexpr int slots = 3;  // the current group, the next, and the one being written

  __device__ TileBroadcast(const Shared<State>& state, const Shared<ToldRows>& told) : state_(state), told_(told) {}

  /// Writes the first two groups to slots 0 and 1. A barrier must follow.
  __device__ void begin(const AttentionProgram& program, const Progression& tile, std::int64_t number) const {
    if (thread_of_block() != 0) return;
    Visits<Rows> visits(program, tile, number);
    ToldRows last;
    for (int slot = 0; slot < 2; ++slot) told_[slot] = last = placed(program, visits.next(), last);
    state_[0] = visits.state();
  }
  /// Writes the next group to `slot`; slot `last` holds the latest one. Its count is 0 after the last group. Barriers
  /// must separate the call from earlier and later reads of the slot.
  __device__ void find(const AttentionProgram& program, const Progression& tile, int last, int slot) const {
    if (thread_of_block() != 0) return;
    Visits<Rows> visits(program, tile, static_cast<State>(state_[0]));
    told_[slot] = placed(program, visits.next(), told_[last]);
    state_[0] = visits.state();
  }
  __device__ ToldRows at(int slot) const { return told_[slot]; }

 private:
  /// Looks up the tensor rows only for the first group of a run; the other threads wait for this one.
  __device__ static ToldRows placed(const AttentionProgram& program, const VisitedRows& rows, const ToldRows& last) {
    ToldRows told{rows};
    if (rows.count > 0 && last.count > 0 && rows.run == last.run) {
      told.first_row = last.row(last.count);
      told.stride = last.stride;
    } else if (rows.count > 0) {
      told.first_row = rows.row(program, 0);
      told.stride = program.run[rows.run].keys.stride;
    }
    return told;
  }

  const Shared<State>& state_;
  const Shared<ToldRows>& told_;
};

}  // namespace poolgrad::kernels::cuda
