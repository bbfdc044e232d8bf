#include "allocator/planner/packer.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <utility>

#include "allocator/base/rounding.h"
#include "allocator/error.h"

namespace poolgrad {

namespace {

using Order = std::vector<std::uint32_t>;

bool wraps(const PackItem& item) { return item.end <= item.begin; }

/// Calls visit(begin, end) for the one or two time intervals in which the item is live.
template <class Visit>
void for_each_stretch(const PackItem& item, std::uint32_t ends, Visit visit) {
  visit(item.begin, wraps(item) ? ends : item.end);
  if (wraps(item) && item.end > 0) visit(0u, item.end);
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

/// Replaces times by ranks, since only their order matters: time advances where a begin follows an end. Returns the end
/// of time.
std::uint32_t compress_time(std::vector<PackItem>& items) {
  std::uint32_t ends = 0;
  for (const PackItem& item : items) ends = std::max({ends, item.begin, item.end});
  std::vector<std::uint8_t> begins_at(std::size_t{ends} + 1), ends_at(std::size_t{ends} + 1);
  for (const PackItem& item : items) begins_at[item.begin] = ends_at[item.end] = 1;
  std::vector<std::uint32_t> begin(std::size_t{ends} + 1), end(std::size_t{ends} + 1);
  std::uint32_t now = 0;
  bool ended = false;
  for (std::size_t time = 0; time <= ends; ++time) {
    end[time] = time == 0 ? 0 : now + 1;
    ended |= time != 0 && ends_at[time] != 0;
    if (begins_at[time] != 0 && std::exchange(ended, false)) ++now;
    begin[time] = now;
  }
  for (PackItem& item : items) item = {item.bytes, begin[item.begin], end[item.end]};
  return now + 1;
}

/// Bytes of the slab.
struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Sorted disjoint ranges; touching or overlapping ranges merge.
class RangeSet {
 public:
  void add(Range range) {
    auto first = std::ranges::lower_bound(ranges_, range.begin, {}, &Range::end);
    auto last = first;
    for (; last != ranges_.end() && last->begin <= range.end; ++last) {
      range = {std::min(range.begin, last->begin), std::max(range.end, last->end)};
    }
    if (first == last) {
      ranges_.insert(first, range);
    } else {
      *first = range;
      ranges_.erase(first + 1, last);
    }
  }
  void append_to(std::vector<Range>& out) const { out.insert(out.end(), ranges_.begin(), ranges_.end()); }

 private:
  std::vector<Range> ranges_;
};

/// The bytes taken at each time: a segment tree over time. A node stores the bytes of items that span its whole time,
/// and the bytes of all items in its subtree.
class Taken {
 public:
  explicit Taken(std::uint32_t ends) : leaves_(std::bit_ceil(std::size_t{ends})), nodes_(2 * leaves_) {}

  void add(std::uint32_t begin, std::uint32_t end, Range range) {
    for_each_covered(begin, end, [&](Node& node) {
      node.throughout.add(range);
      node.ever.add(range);
    });
    for_each_above(begin, end, [&](Node& node) { node.ever.add(range); });
  }
  /// Appends all ranges taken at any moment of [begin, end), unsorted.
  void append(std::uint32_t begin, std::uint32_t end, std::vector<Range>& out) {
    for_each_covered(begin, end, [&](Node& node) { node.ever.append_to(out); });
    for_each_above(begin, end, [&](Node& node) { node.throughout.append_to(out); });
  }

 private:
  struct Node {
    RangeSet throughout;
    RangeSet ever;
  };

  template <class Visit>
  void for_each_covered(std::size_t begin, std::size_t end, Visit visit) {
    for (begin += leaves_, end += leaves_; begin < end; begin /= 2, end /= 2) {
      if (begin & 1) visit(nodes_[begin++]);
      if (end & 1) visit(nodes_[--end]);
    }
  }
  /// Visits the nodes from the first and the last moment up to the root.
  template <class Visit>
  void for_each_above(std::size_t begin, std::size_t end, Visit visit) {
    std::size_t low = begin + leaves_;
    std::size_t high = end - 1 + leaves_;
    for (; low != 0; low /= 2, high /= 2) {
      visit(nodes_[low]);
      if (low != high) visit(nodes_[high]);
    }
  }

  std::size_t leaves_;
  std::vector<Node> nodes_;
};

/// Places items one by one, each into the smallest sufficient gap between items that are live at the same time.
class Slab {
 public:
  Slab(const std::vector<PackItem>& items, std::uint32_t ends)
      : items_(items), ends_(ends), taken_(ends), offsets_(items.size()) {}

  void place(std::uint32_t index) {
    const PackItem& item = items_[index];
    if (item.bytes == 0) return;
    in_the_way_.clear();
    for_each_stretch(item, ends_,
                     [&](std::uint32_t begin, std::uint32_t end) { taken_.append(begin, end, in_the_way_); });
    work_ += in_the_way_.size() + 16;
    std::ranges::sort(in_the_way_, {}, &Range::begin);
    std::uint64_t top = 0;
    std::uint64_t best = 0;
    std::uint64_t best_size = UINT64_MAX;
    for (const Range& range : in_the_way_) {
      if (range.begin >= top + item.bytes && range.begin - top < best_size) {
        best = top;
        best_size = range.begin - top;
      }
      top = std::max(top, range.end);
    }
    const std::uint64_t offset = best_size != UINT64_MAX ? best : top;
    offsets_[index] = offset;
    bytes_ = std::max(bytes_, offset + item.bytes);
    for_each_stretch(item, ends_, [&](std::uint32_t begin, std::uint32_t end) {
      taken_.add(begin, end, {offset, offset + item.bytes});
    });
  }

  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::uint64_t>& offsets() { return offsets_; }
  /// Ranges visited so far.
  std::uint64_t work() const { return work_; }

 private:
  const std::vector<PackItem>& items_;
  std::uint32_t ends_;
  Taken taken_;
  std::vector<std::uint64_t> offsets_;
  std::vector<Range> in_the_way_;
  std::uint64_t bytes_ = 0;
  std::uint64_t work_ = 0;
};

/// The items by falling `weight`; ties keep their order.
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

Packing pack(const std::vector<PackItem>& given, std::size_t granule, double tolerance) {
  std::vector<PackItem> items = given;
  const std::uint32_t ends = compress_time(items);
  std::uint64_t sum = 0;
  for (PackItem& item : items) {
    if (item.bytes >> 62 == 0) item.bytes = round_up(item.bytes, granule);
    sum += std::min(item.bytes, std::uint64_t{1} << 62);
    if (sum >> 62 != 0) throw ValueError("[pack] sizes add up to 2^62 bytes or more");
  }
  Packing best{{}, UINT64_MAX, most_live(items, ends)};
  const auto good = static_cast<std::uint64_t>(static_cast<double>(best.lower_bound) * (1 + tolerance));
  constexpr std::uint64_t most_work = 10'000'000;
  std::uint64_t work = 0;
  Order best_order;
  const auto attempt = [&](Order order) {
    Slab slab(items, ends);
    for (const std::uint32_t index : order) slab.place(index);
    work += slab.work();
    if (slab.bytes() >= best.bytes) return;
    best.bytes = slab.bytes();
    best.offsets = std::move(slab.offsets());
    best_order = std::move(order);
  };
  const auto size = [](const PackItem& item) { return static_cast<double>(item.bytes); };
  const auto life = [&](const PackItem& item) {
    return static_cast<double>(item.end) - item.begin + (wraps(item) ? ends : 0.0);
  };
  const auto enough = [&] { return best.bytes <= good || work > most_work; };
  attempt(by(items, [&](const PackItem& item) { return size(item) * life(item); }));
  if (!enough()) attempt(by(items, size));
  if (!enough()) attempt(by(items, life));
  // Place items beyond the target first in the next round.
  for (int round = 0; round < 4 && !enough(); ++round) {
    Order order = best_order;
    std::ranges::stable_partition(order, [&](std::uint32_t i) { return best.offsets[i] + items[i].bytes > good; });
    attempt(std::move(order));
  }
  return best;
}

}  // namespace poolgrad
