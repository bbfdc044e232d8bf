#include "kernels/schedule/attention_schedule.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "kernels/schedule/generator.h"

namespace poolgrad::kernels {

namespace {

/// Returns n such that the term admits the same pairs in heads h and h + n.
std::int64_t head_period_of(const AttentionTerm& term, std::int64_t heads) {
  using Kind = AttentionTerm::Kind;
  std::int64_t period = 1;
  switch (term.kind) {
    case Kind::dilated:
      if (term.grouped || term.contiguous_offset) return heads;
      for (int b = 0; b < term.branches && period < heads; ++b) period = std::lcm(period, term.dilation_rate[b]);
      return period;
    case Kind::offsets: return term.sets;
    case Kind::listed: return term.lists;
    case Kind::random: return heads;
    default: return 1;
  }
}

}  // namespace

AttentionSchedule AttentionSchedule::transposed() const {
  AttentionSchedule other = *this;
  std::swap(other.queries, other.keys);
  std::swap(other.left, other.right);
  other.flipped = !flipped;
  return other;
}

std::int64_t AttentionSchedule::head_period() const {
  std::int64_t period = 1;
  for (int t = 0; t < term_count && period < heads; ++t) period = std::lcm(period, head_period_of(term[t], heads));
  return std::max<std::int64_t>(1, std::min(period, heads));
}

RowTiling::RowTiling(const AttentionSchedule& schedule, std::int64_t limit, bool short_first) : map_(schedule.queries) {
  // Limits classes to the number of rows: more would be empty.
  const std::int64_t most = std::max({std::int64_t{1}, map_.piece(0).count, map_.piece(1).count});
  classes_ = std::min(most, schedule.modulus / std::gcd(schedule.modulus, map_.stride));
  const std::int64_t unit = classes_ * map_.stride;  // positions per row of a tile
  const std::int64_t target = std::clamp<std::int64_t>(map_.count, 1, limit) * unit;
  cut_ = schedule.cut > 0 ? schedule.cut : target;
  parts_ = std::max<std::int64_t>(1, ceil_div(cut_, target));
  part_ = ceil_div(ceil_div(cut_, parts_), unit) * unit;
  parts_ = ceil_div(cut_, part_);
  for (int n = 0; n < 2; ++n) {
    const PositionMap::Piece piece = map_.piece(n);
    origin_[n] = first_part_[n] = tiles_[n] = 0;
    if (piece.count <= 0) continue;
    const std::int64_t missing = short_first ? floor_mod(-piece.count * map_.stride, part_) : 0;
    origin_[n] = schedule.cut > 0 ? 0 : piece.position - missing;
    const auto part_at = [&](std::int64_t position) {
      const std::int64_t cut = floor_div(position - origin_[n], cut_);
      return cut * parts_ + (position - origin_[n] - cut * cut_) / part_;
    };
    first_part_[n] = part_at(piece.position);
    tiles_[n] = (part_at(piece.position + (piece.count - 1) * map_.stride) - first_part_[n] + 1) * classes_;
  }
}

Progression RowTiling::tile(std::int64_t number) const {
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

ListIdentity::ListIdentity() {
  static std::atomic<std::uint64_t> made{0};
  number_ = ++made;
}

// Counts the pairs of a schedule without a loop over its rows. Between two rows bounded by the same edges, the number
// of keys per row is affine.

namespace {

/// Counts the pairs of a tile's rows with one run.
class RunPairs {
 public:
  RunPairs(const AttentionProgram& program, const Progression& tile, const AttentionRun& run)
      : program_(program), tile_(tile), run_(run) {}

  double count() const { return sum(run_.rows.begin, at(run_.rows.begin), run_.rows.end - 1, at(run_.rows.end - 1)); }

 private:
  /// One end of a row's interval: the tighter of a moving and a resting bound, i.e. the larger low or the smaller high.
  struct End {
    std::int64_t resting;
    bool moves;
    std::int64_t step;  // step in the run, clamped
    int clamped;        // -1 below the run, 1 beyond it, 0 inside
  };
  struct Row {
    End begin, end;
    double keys() const { return static_cast<double>(std::max<std::int64_t>(0, end.step - begin.step)); }
  };

  End end_at(std::int64_t moving, std::int64_t resting, bool moves) const {
    const Progression& keys = run_.keys;
    const std::int64_t step = ceil_div((moves ? moving : resting) - keys.position, keys.step);
    return {resting, moves, std::clamp<std::int64_t>(step, 0, keys.count), step <= 0 ? -1 : step >= keys.count ? 1 : 0};
  }

  Row at(std::int64_t t) const {
    const std::int64_t row = tile_.position + t * tile_.step, low = row + run_.low, high = row + run_.high;
    AttentionRun blocks = run_;
    blocks.low = -far_away, blocks.high = far_away;
    const Interval resting = program_.seen(blocks, row) & Interval{run_.keys.position, run_.keys.last_position() + 1};
    return {end_at(low, resting.begin, low > resting.begin), end_at(high, resting.end, high < resting.end)};
  }

  /// Whether the end is affine between two rows.
  bool is_affine(const End& a, const End& b) const {
    if (a.clamped != 0 && a.clamped == b.clamped) return true;  // ends never decrease
    if (a.resting != b.resting || a.moves != b.moves) return false;
    if (!a.moves) return true;
    return a.clamped == 0 && b.clamped == 0 && tile_.step % run_.keys.step == 0;
  }

  double sum(std::int64_t first, const Row& a, std::int64_t last, const Row& b) const {
    if (first == last) return a.keys();
    const auto rows = static_cast<double>(last - first + 1);
    if (is_affine(a.begin, b.begin) && is_affine(a.end, b.end) && (a.keys() > 0) == (b.keys() > 0))
      return rows * (a.keys() + b.keys()) / 2;
    const std::int64_t middle = first + (last - first) / 2;
    return sum(first, a, middle, at(middle)) + sum(middle + 1, at(middle + 1), last, b);
  }

  const AttentionProgram& program_;
  const Progression& tile_;
  const AttentionRun& run_;
};

/// Counts the kept pairs of a masked run exactly, or estimates them from a fixed sample if there are many.
double count_kept(const AttentionProgram& program, std::int64_t h, const Progression& tile, const AttentionRun& run) {
  constexpr std::int64_t enough = std::int64_t{1} << 20, samples = std::int64_t{1} << 16;
  const auto kept = [&](std::int64_t t, std::int64_t s) {
    const std::int64_t row = tile.position + t * tile.step;
    return program.steps_seen(run, run.keys, row).contains(s) &&
           program.keeps(run, h, row, run.keys.position + s * run.keys.step);
  };
  const Interval rows = run.rows;
  const std::int64_t height = rows.end - rows.begin;
  double count = 0;
  if (static_cast<double>(height) * static_cast<double>(run.keys.count) <= static_cast<double>(enough)) {
    for (std::int64_t t = rows.begin; t < rows.end; ++t)
      for (std::int64_t s = 0; s < run.keys.count; ++s) count += kept(t, s);
    return count;
  }
  for (std::int64_t n = 0; n < samples; ++n) {
    const std::uint64_t draw = mix(static_cast<std::uint64_t>(n)), other = mix(~draw);
    count += kept(rows.begin + static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(height)),
                  static_cast<std::int64_t>(other % static_cast<std::uint64_t>(run.keys.count)));
  }
  return count / static_cast<double>(samples) * static_cast<double>(height) * static_cast<double>(run.keys.count);
}

/// Stride over blocks of rows if drawing all of them would take long: the count is then an estimate. 1: exact.
std::int64_t sampled_blocks(const AttentionSchedule& schedule, const AttentionTerm& term) {
  constexpr double enough = 1 << 22;
  if (term.kind != AttentionTerm::Kind::random || !term.visited) return 1;
  const double rows = static_cast<double>(schedule.queries.count) / static_cast<double>(term.size);
  const double columns = static_cast<double>(schedule.keys.count) / static_cast<double>(term.size);
  return rows * columns > enough ? static_cast<std::int64_t>(rows * columns / enough) | 1 : 1;
}

}  // namespace

double AttentionSchedule::count_pairs() const {
  AttentionSchedule whole = *this;
  whole.cut = 0;  // one tile for each class of rows
  const std::int64_t period = head_period();
  std::int64_t every = 1, limit = std::max<std::int64_t>(1, queries.count);
  for (int t = 0; t < term_count; ++t) {
    every = std::max(every, sampled_blocks(*this, term[t]));
    if (every > 1) limit = std::min(limit, term[t].size);
  }
  const RowTiling tiling(whole, limit);
  const AttentionProgram program{.schedule = &whole};
  double pairs = 0;
  for (std::int64_t h = 0; h < period; ++h) {
    double head = 0;
    std::int64_t rows = 0;
    for (std::int64_t n = h % std::clamp<std::int64_t>(tiling.tiles(), 1, every); n < tiling.tiles(); n += every) {
      const Progression tile = tiling.tile(n);
      rows += tile.count;
      expand_tile(whole, h, tile, [&](const Strip&, const AttentionRun& run) {
        head +=
            run.has(AttentionRun::masked) ? count_kept(program, h, tile, run) : RunPairs(program, tile, run).count();
      });
    }
    if (rows > 0 && rows < queries.count) head *= static_cast<double>(queries.count) / static_cast<double>(rows);
    pairs += head * static_cast<double>(ceil_div(heads - h, period));
  }
  return pairs;
}

}  // namespace poolgrad::kernels
