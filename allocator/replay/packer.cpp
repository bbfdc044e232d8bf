#include "allocator/replay/packer.h"

#include <algorithm>
#include <numeric>

namespace poolgrad {

namespace {

using Order = std::vector<std::uint32_t>;

std::uint64_t lifetime(const PackItem& item, std::uint32_t ends) {
  return item.end > item.begin ? item.end - item.begin : std::uint64_t{ends} - item.begin + item.end;
}

/// Calls visit(begin, end) for the one or two stretches of time in which the item is live.
template <class Visit>
void for_each_stretch(const PackItem& item, std::uint32_t ends, Visit visit) {
  if (item.end > item.begin) {
    visit(item.begin, item.end);
    return;
  }
  visit(item.begin, ends);
  if (item.end > 0) visit(0u, item.end);
}

bool overlap(const PackItem& a, const PackItem& b) {
  const bool a_wraps = a.end <= a.begin;
  const bool b_wraps = b.end <= b.begin;
  if (a_wraps && b_wraps) return true;
  if (a_wraps) return b.end > a.begin || b.begin < a.end;
  if (b_wraps) return a.end > b.begin || a.begin < b.end;
  return a.begin < b.end && b.begin < a.end;
}

std::uint64_t most_live(const std::vector<PackItem>& items, std::uint32_t ends) {
  std::vector<std::int64_t> change(std::size_t{ends} + 1);
  for (const PackItem& item : items) {
    for_each_stretch(item, ends, [&](std::uint32_t begin, std::uint32_t end) {
      change[begin] += static_cast<std::int64_t>(item.bytes);
      change[end] -= static_cast<std::int64_t>(item.bytes);
    });
  }
  std::int64_t live = 0;
  std::int64_t most = 0;
  for (const std::int64_t c : change) most = std::max(most, live += c);
  return static_cast<std::uint64_t>(most);
}

/// Items are placed one after the other. Those placed so far are listed by slices of time, so that only those that can
/// be in the way are looked at.
class Slab {
 public:
  Slab(const std::vector<PackItem>& items, std::uint32_t ends)
      : items_(items), ends_(ends), slices_(slice_of(ends) + 1), seen_(items.size(), 0), offsets_(items.size()) {}

  void place(std::uint32_t index) {
    const PackItem& item = items_[index];
    in_the_way_.clear();
    for_each_slice(item, [&](std::vector<std::uint32_t>& slice) {
      for (const std::uint32_t other : slice) {
        if (seen_[other] == index + 1) continue;
        seen_[other] = index + 1;
        if (overlap(item, items_[other]))
          in_the_way_.push_back({offsets_[other], offsets_[other] + items_[other].bytes});
      }
    });
    std::ranges::sort(in_the_way_, {}, &Range::begin);
    // The smallest gap that fits, the lowest of equals; else above everything.
    std::uint64_t top = 0;
    std::uint64_t best = 0;
    std::uint64_t best_size = UINT64_MAX;
    for (const Range& range : in_the_way_) {
      if (range.begin > top && range.begin - top >= item.bytes && range.begin - top < best_size) {
        best = top;
        best_size = range.begin - top;
      }
      top = std::max(top, range.end);
    }
    const std::uint64_t offset = best_size != UINT64_MAX ? best : top;
    offsets_[index] = offset;
    bytes_ = std::max(bytes_, offset + item.bytes);
    for_each_slice(item, [&](std::vector<std::uint32_t>& slice) { slice.push_back(index); });
  }

  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::uint64_t>& offsets() { return offsets_; }

 private:
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
  };

  static std::size_t slice_of(std::uint32_t time) { return time / slice_length; }

  template <class Visit>
  void for_each_slice(const PackItem& item, Visit visit) {
    for_each_stretch(item, ends_, [&](std::uint32_t begin, std::uint32_t end) {
      for (std::size_t i = slice_of(begin); i <= slice_of(end - 1); ++i) visit(slices_[i]);
    });
  }

  static constexpr std::uint32_t slice_length = 32;

  const std::vector<PackItem>& items_;
  std::uint32_t ends_;
  std::vector<std::vector<std::uint32_t>> slices_;
  std::vector<std::uint32_t> seen_;  // index + 1 of the item that looked at it last
  std::vector<std::uint64_t> offsets_;
  std::vector<Range> in_the_way_;
  std::uint64_t bytes_ = 0;
};

/// The items by falling `weight`; of equals the earlier first.
template <class Weight>
Order by(const std::vector<PackItem>& items, Weight weight) {
  std::vector<double> weights(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) weights[i] = weight(items[i]);
  Order order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t i) { return weights[i]; });
  return order;
}

}  // namespace

Packing pack(const std::vector<PackItem>& given, std::size_t granule, double tolerance, std::size_t rounds) {
  std::vector<PackItem> items = given;
  std::uint32_t ends = 1;
  for (PackItem& item : items) {
    item.bytes = (item.bytes + granule - 1) & ~(std::uint64_t{granule} - 1);
    ends = std::max({ends, item.begin + 1, item.end});
  }
  Packing best{{}, UINT64_MAX, most_live(items, ends)};
  const auto good = static_cast<std::uint64_t>(static_cast<double>(best.lower_bound) * (1 + tolerance));
  const auto attempt = [&](const Order& order) {
    Slab slab(items, ends);
    for (const std::uint32_t index : order) slab.place(index);
    if (slab.bytes() < best.bytes) {
      best.bytes = slab.bytes();
      best.offsets = slab.offsets();
    }
    return slab.offsets();
  };
  const auto size = [](const PackItem& item) { return static_cast<double>(item.bytes); };
  const auto life = [&](const PackItem& item) { return static_cast<double>(lifetime(item, ends)); };
  Order order = by(items, [&](const PackItem& item) { return size(item) * life(item); });
  Order best_order = order;
  attempt(order);
  for (const Order& other : {by(items, size), by(items, life)}) {
    if (best.bytes <= good) return best;
    const std::uint64_t before = best.bytes;
    attempt(other);
    if (best.bytes < before) best_order = other;
  }
  // What ends up above the mark goes first next time.
  order = best_order;
  for (std::size_t round = 0; round < rounds && best.bytes > good; ++round) {
    const std::vector<std::uint64_t> offsets = attempt(order);
    std::ranges::stable_partition(order, [&](std::uint32_t i) { return offsets[i] + items[i].bytes > good; });
  }
  return best;
}

}  // namespace poolgrad
