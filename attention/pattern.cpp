#include "attention/pattern.h"

#include <algorithm>

#include "allocator/error.h"

namespace poolgrad::attention {

namespace {

std::string bound(std::int64_t value) { return value == Pattern::unbounded ? "unbounded" : std::to_string(value); }

}  // namespace

Pattern Pattern::dense() { return {unbounded, unbounded}; }

Pattern Pattern::causal() { return {unbounded, 0}; }

Pattern Pattern::window(std::int64_t left, std::int64_t right) {
  if (left < 0 || right < 0)
    throw ValueError("[window] bounds must not be negative: left " + std::to_string(left) + ", right " +
                     std::to_string(right));
  return {left, right};
}

Pattern operator&(const Pattern& a, const Pattern& b) {
  return {std::min(a.left_, b.left_), std::min(a.right_, b.right_)};
}

std::int64_t Pattern::multiplicity(std::int64_t i, std::int64_t j) const {
  const bool left = left_ == unbounded || j >= i - left_;
  const bool right = right_ == unbounded || j - i <= right_;
  return left && right ? 1 : 0;
}

kernels::BandSchedule Pattern::schedule(std::int64_t queries, std::int64_t keys, Alignment alignment) const {
  return {.left = left_, .right = right_, .q_offset = alignment == Alignment::bottom_right ? keys - queries : 0};
}

std::string Pattern::to_string() const {
  if (left_ == unbounded && right_ == unbounded) return "dense";
  if (left_ == unbounded && right_ == 0) return "causal";
  return "window(" + bound(left_) + ", " + bound(right_) + ")";
}

}  // namespace poolgrad::attention
