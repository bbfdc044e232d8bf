#include "kernels/attention_schedule.h"

#include <algorithm>

namespace poolgrad::kernels {

AttentionSchedule AttentionSchedule::transposed() const {
  AttentionSchedule other = *this;
  std::swap(other.queries, other.keys);
  std::swap(other.left, other.right);
  other.flipped = !flipped;
  return other;
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

}  // namespace poolgrad::kernels
