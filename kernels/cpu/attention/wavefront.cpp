#include "kernels/cpu/attention/wavefront.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <type_traits>

#include "kernels/parallel.h"

namespace poolgrad::kernels::attention {

bool ascending(std::span<const AttentionRun> runs) {
  const auto behind = [](const AttentionRun& a, const AttentionRun& b) { return b.keys.row < RowVisit(a, {}).end; };
  return std::adjacent_find(runs.begin(), runs.end(), behind) == runs.end();
}

AttentionReach::AttentionReach(Stream stream, const AttentionTiles& by_key, std::int64_t first_head, std::int64_t heads)
    : heads_(std::min(heads, by_key.head_period())),
      tiles_(by_key.count()),
      reach_(stream, "attention", heads_ * tiles_) {
  parallel_ranges(heads_ * tiles_, 64, [&](std::int64_t begin, std::int64_t end) {
    AttentionTiles::Reader read(by_key);
    for (std::int64_t n = begin; n < end; ++n) {
      Reach& found = reach_.data()[n];
      const auto runs = read(first_head + n / tiles_, n % tiles_).runs;
      const Progression tile = by_key.tile(n % tiles_);
      found.ascending = attention::ascending(runs);
      found.runs = static_cast<std::int32_t>(runs.size());
      for (const AttentionRun& run : runs) {
        const RowVisit v(run, tile);
        found.begin = found.pairs == 0 ? v.begin : std::min(found.begin, v.begin);
        found.end = std::max(found.end, v.end);
        found.pairs += v.pairs();
      }
    }
  });
  for (std::int64_t h = 0; h < heads_; ++h) {
    std::int64_t complete = by_key.schedule().keys.count, visited = 0;
    for (std::int64_t t = tiles_ - 1; t >= 0; --t) {
      Reach& reach = reach_.data()[h * tiles_ + t];
      if (reach.pairs > 0) complete = std::min(complete, reach.begin);
      reach.complete = complete;
    }
    for (std::int64_t t = 0; t < tiles_; ++t) {
      Reach& reach = reach_.data()[h * tiles_ + t];
      reach.entered = visited;
      visited = std::max(visited, reach.end);
      span_ = std::max(span_, visited - reach.complete);
      most_runs_ = std::max<std::int64_t>(most_runs_, reach.runs);
    }
  }
}

double AttentionReach::pairs(std::int64_t head, Interval tiles, Interval rows) const {
  double sum = 0;
  for (std::int64_t t = tiles.begin; t < tiles.end; ++t) {
    const Reach& r = at(head, t);
    const Interval shared = Interval{r.begin, r.end} & rows;
    if (!shared.empty())
      sum += r.pairs * static_cast<double>(shared.end - shared.begin) / static_cast<double>(r.end - r.begin);
  }
  return sum;
}

namespace {

/// Tells the core that this is a spin loop.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Wavefront::Turn::wait(std::int64_t row) const {
  // A pair of tiles takes about 100 us. A thread that waits for longer than some pairs yields the core.
  for (int turn = 0; !ready(row); ++turn)
    if (turn < 4096)
      pause();
    else
      std::this_thread::yield();
}

namespace {

/// A run, and the number of pairs in the runs before it.
struct PassedVisit {
  RowVisit visit;
  double before;
};
constexpr std::int64_t passed_doubles = sizeof(PassedVisit) / sizeof(double);
static_assert(sizeof(PassedVisit) % sizeof(double) == 0 && std::is_trivially_destructible_v<PassedVisit>);

/// Progress of a key tile, in pairs, as a function of the passed rows.
class Progress {
 public:
  /// Starts empty, with room for the runs of any tile.
  explicit Progress(double* room) : visits_(reinterpret_cast<PassedVisit*>(room)) {}

  void become(std::span<const AttentionRun> runs, const Progression& tile, std::int64_t step) {
    ascending_ = attention::ascending(runs);
    step_ = step;
    count_ = 0, end_ = 0, pairs_ = 0;
    for (const AttentionRun& run : runs) {
      const RowVisit& v = std::construct_at(visits_ + count_++, RowVisit(run, tile), pairs_)->visit;
      pairs_ += v.pairs();
      end_ = std::max(end_, v.end);
    }
  }
  std::span<const PassedVisit> visits() const { return {visits_, visits_ + count_}; }
  std::int64_t end() const { return end_; }
  double at_a_time(const RowVisit& v) const {
    return static_cast<double>(v.keys) * static_cast<double>(std::min(step_, v.rows));
  }
  /// Pairs until all rows before `row` are passed. If the tile visits rows out of order, they pass only at its end.
  double until(std::int64_t row) const {
    if (!ascending_) return pairs_;
    const auto all = visits();
    const auto at = std::lower_bound(all.begin(), all.end(), row,
                                     [](const PassedVisit& passed, std::int64_t r) { return passed.visit.end < r; });
    if (at == all.end()) return pairs_;
    const RowVisit& v = at->visit;
    const double part = static_cast<double>(row - v.begin) / static_cast<double>(v.end - v.begin);
    return at->before + std::min(v.pairs(), std::max(at_a_time(v), v.pairs() * part));
  }

 private:
  PassedVisit* visits_;
  std::int64_t count_ = 0, step_ = 1, end_ = 0;
  double pairs_ = 0;
  bool ascending_ = true;
};

/// Head start of the tile `before`, in pairs, that keeps `tile` from waiting for it.
double delay_behind(const Progress& before, const Progress& tile) {
  double longest = 0;
  for (const auto& [v, passed] : tile.visits()) {
    if (v.begin >= before.end()) continue;
    const double at_a_time = tile.at_a_time(v);
    const double first = static_cast<double>(v.end - v.begin) * std::min(1.0, at_a_time / v.pairs());
    const auto wait = [&](std::int64_t row, double done) {
      longest = std::max(longest, before.until(std::min(row, before.end())) - done);
    };
    wait(v.begin + static_cast<std::int64_t>(first), passed);
    wait(v.end, passed + std::max(0.0, v.pairs() - at_a_time));
  }
  return longest;
}

/// Maximum of the planning threads and the planned threads.
std::int64_t most_threads(std::int64_t threads) { return std::max<std::int64_t>(threads, num_threads()); }

}  // namespace

std::int64_t WavefrontLength::elements(std::int64_t tiles_of_heads, std::int64_t most_runs, std::int64_t threads) {
  return 3 * tiles_of_heads + threads + 2 * threads * most_runs * passed_doubles;
}

WavefrontLength::WavefrontLength(Stream stream, const AttentionReach& reach, const AttentionTiles& by_key,
                                 std::int64_t first_head, std::int64_t heads, std::int64_t group, std::int64_t step,
                                 std::int64_t threads)
    : tiles_(reach.tiles()),
      count_(heads / group * tiles_),
      space_(stream, "attention", elements(heads * tiles_, reach.most_runs(), most_threads(threads))),
      pairs_(space_.data()),
      delay_(pairs_ + count_),
      free_(delay_ + count_) {
  double* const of_head = free_ + most_threads(threads);
  double* const rooms = of_head + heads * tiles_;
  const std::int64_t differ = std::min(heads, by_key.head_period()), count = differ * tiles_,
                     room = reach.most_runs() * passed_doubles;
  constexpr std::int64_t at_once = 64;
  parallel_items(ceil_div(count, at_once), [&](std::int64_t part, int worker) {
    const std::int64_t begin = part * at_once, end = std::min(begin + at_once, count);
    AttentionTiles::Reader read(by_key);
    Progress before(rooms + 2 * worker * room), tile(rooms + (2 * worker + 1) * room);
    const auto reach_tile = [&](Progress& progress, std::int64_t n) {
      progress.become(read(first_head + n / tiles_, n % tiles_).runs, by_key.tile(n % tiles_), step);
    };
    if (begin % tiles_ > 0) reach_tile(before, begin - 1);
    for (std::int64_t n = begin; n < end; ++n, std::swap(before, tile)) {
      reach_tile(tile, n);
      if (n % tiles_ > 0) of_head[n] = delay_behind(before, tile);
    }
  });
  for (std::int64_t n = 0; n < count_; ++n) {
    const std::int64_t first = n / tiles_ * group, tile = n % tiles_;
    double ahead = 0, own = 0, longest = 0;
    for (std::int64_t h = first; h < first + group; ++h) {
      longest = std::max(longest, ahead + of_head[h % differ * tiles_ + tile] - own);
      if (tile > 0) ahead += reach.at(h, tile - 1).pairs;
      own += reach.at(h, tile).pairs;
    }
    pairs_[n] = own;
    delay_[n] = longest;
  }
}

double WavefrontLength::of(Interval groups, std::int64_t threads) const {
  double* const last = free_ + threads;  // finish time of each thread's last item
  std::fill(free_, last, 0.0);
  double end = 0;
  for (std::int64_t n = groups.begin; n < groups.end && tiles_ > 0; ++n) {
    const std::int64_t first_item = n * tiles_ % count_;
    double begun = 0, ended = 0;
    for (std::int64_t item = first_item; item < first_item + tiles_; ++item) {
      const auto first = std::min_element(free_, last);
      begun = std::max(begun + (item > first_item ? delay_[item] : 0), *first);
      *first = ended = std::max(begun + pairs_[item], ended);
    }
    end = std::max(end, ended);
  }
  return end;
}

}  // namespace poolgrad::kernels::attention
