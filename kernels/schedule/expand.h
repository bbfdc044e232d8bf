// From the generator's strips to runs of a program: which bounds matter to which rows of a tile. Host only.
#pragma once

#include <array>

#include "kernels/schedule/generator.h"
#include "kernels/schedule/program.h"

namespace poolgrad::kernels {

/// The lows (or highs) of a strip that matter between two rows: where the least step of the run that a row sees is not
/// the run's own end whatever the row, and no other bound is the tighter one for all of them.
class TightEdges {
 public:
  /// What `tightness` says of a bound grows with how tight it is: x itself for lows, -x for highs. `first` and `last`
  /// are positions of rows, `resting` is a bound that all of them have.
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
  /// Into the two bounds of a run.
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

/// Calls f(strip, run) for the runs of `keys`; several, one after another for fewer rows each, where more than one
/// bound of blocks matters on a side.
template <class F>
void expand_run(const Strip& strip, const Progression& tile, Interval rows, const Progression& keys, const F& f) {
  const std::int64_t first = tile.position + rows.begin * tile.step, last = tile.position + (rows.end - 1) * tile.step;
  const TightEdges lows(strip.low, strip.lows, 1, first, last, keys.position),
      highs(strip.high, strip.highs, -1, first, last, keys.last_position() + 1);
  if (!lows.fits() || !highs.fits()) {  // for a single row one bound is the tightest
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
    // Keys that other rows of the tile see may lie beyond the one document that all of these rows are in.
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

/// Calls f(strip, run) for everything that rows of `tile` visit in query head h, in the order of visits. The table of
/// run.period logarithms is the strip's.
template <class F>
void expand_tile(const AttentionSchedule& schedule, std::int64_t h, const Progression& tile, const F& f) {
  for_each_run_of_tile(schedule, h, tile, [&](const Strip& strip, Interval rows, const Progression& keys) {
    expand_run(strip, tile, rows, keys, f);
  });
}

}  // namespace poolgrad::kernels
