#include "kernels/schedule/attention_schedule.h"

#include <algorithm>
#include <atomic>
#include <numeric>

namespace poolgrad::kernels {

namespace {

/// Heads h and h + n see the same of a term.
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
  // More classes than rows would be empty.
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

}  // namespace poolgrad::kernels
