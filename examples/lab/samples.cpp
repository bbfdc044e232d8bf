// samples_of(): the pool's totals over time.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "examples/lab/history.h"

namespace poolgrad::examples {

namespace {

/// Runs of committed addresses that no block is on.
class FreeRuns {
 public:
  void add(std::uint64_t address, std::uint64_t size) {
    if (size == 0) return;
    take(address, size);  // whatever a contradictory trace left there
    auto next = runs_.lower_bound(address);
    if (next != runs_.end() && next->first == address + size) {
      size += next->second;
      next = erase(next);
    }
    if (next != runs_.begin())
      if (const auto before = std::prev(next); before->first + before->second == address) {
        address = before->first;
        size += before->second;
        erase(before);
      }
    insert(address, size);
  }

  void take(std::uint64_t address, std::uint64_t size) {
    const std::uint64_t end = address + size;
    auto it = runs_.upper_bound(address);
    if (it != runs_.begin()) --it;
    while (it != runs_.end() && it->first < end) {
      const auto [from, length] = *it;
      const std::uint64_t to = from + length;
      if (to <= address) {
        ++it;
        continue;
      }
      it = erase(it);
      if (from < address) insert(from, address - from);
      if (to > end) insert(end, to - end);
    }
  }

  std::uint64_t largest() const { return sizes_.empty() ? 0 : *sizes_.rbegin(); }

 private:
  using Runs = std::map<std::uint64_t, std::uint64_t>;

  void insert(std::uint64_t address, std::uint64_t size) {
    runs_[address] = size;
    sizes_.insert(size);
  }
  Runs::iterator erase(Runs::iterator run) {
    sizes_.erase(sizes_.find(run->second));
    return runs_.erase(run);
  }

  Runs runs_;
  std::multiset<std::uint64_t> sizes_;
};

/// Something begins or ends. At one moment, pages come first and go last.
struct Change {
  enum Kind : std::uint8_t { map, end_block, give_back, begin_block, unmap };
  Moment moment;
  Kind kind;
  std::uint32_t index;
};

std::vector<Change> changes_of(const History& history) {
  std::vector<Change> changes;
  const auto add = [&](Moment moment, Change::Kind kind, std::size_t index) {
    changes.push_back({moment, kind, static_cast<std::uint32_t>(index)});
  };
  for (std::size_t i = 0; i < history.blocks.size(); ++i) {
    const BlockLife& block = history.blocks[i];
    add(block.begin, Change::begin_block, i);
    if (block.given_back < block.end) add(block.given_back, Change::give_back, i);
    if (!block.after) add(block.end, Change::end_block, i);
  }
  for (std::size_t i = 0; i < history.pages.size(); ++i) {
    add(history.pages[i].begin, Change::map, i);
    add(history.pages[i].end, Change::unmap, i);
  }
  std::ranges::stable_sort(changes, {}, [](const Change& c) { return std::pair(c.moment, c.kind); });
  return changes;
}

class SampleTotals {
 public:
  explicit SampleTotals(const History& history) : history_(history) {}

  void apply(const Change& change) {
    if (change.kind == Change::map || change.kind == Change::unmap) {
      const PageLife& page = history_.pages[change.index];
      if (change.kind == Change::map) {
        sample_.reserved += page.size;
        free_.add(page.address, page.size);
      } else {
        sample_.reserved -= page.size;
        free_.take(page.address, page.size);
      }
      return;
    }
    const BlockLife& block = history_.blocks[change.index];
    const auto category = std::min(static_cast<std::size_t>(block.category), category_count - 1);
    switch (change.kind) {
      case Change::begin_block:
        sample_.requested[category] += block.requested;
        sample_.live += block.size;
        free_.take(block.address, block.size);
        break;
      case Change::give_back:
        sample_.requested[category] -= block.requested;
        sample_.live -= block.size;
        sample_.pending += block.size;
        break;
      default:
        if (block.given_back < block.end) {
          sample_.pending -= block.size;
        } else {
          sample_.requested[category] -= block.requested;
          sample_.live -= block.size;
        }
        if (!history_.pages.empty()) free_.add(block.address, block.size);
    }
  }

  const Sample& at(Moment moment) {
    sample_.moment = moment;
    sample_.largest_free = free_.largest();
    return sample_;
  }

 private:
  const History& history_;
  Sample sample_;
  FreeRuns free_;
};

}  // namespace

std::uint64_t Sample::requested_in_all() const {
  return std::accumulate(requested.begin(), requested.end(), std::uint64_t{0});
}

std::vector<Sample> samples_of(const History& history, std::size_t events, std::size_t most) {
  const std::vector<Change> changes = changes_of(history);
  SampleTotals totals(history);
  auto change = changes.begin();
  const auto advance = [&](std::size_t moment) -> const Sample& {
    for (; change != changes.end() && change->moment <= moment; ++change) totals.apply(*change);
    return totals.at(static_cast<Moment>(moment));
  };
  std::vector<Sample> samples{advance(0)};
  const std::size_t shares = std::min(events, std::max<std::size_t>(most, 1));
  for (std::size_t share = 0; share < shares; ++share) {
    const std::size_t first = share * events / shares + 1, last = (share + 1) * events / shares;
    Sample fullest = advance(first);
    for (std::size_t moment = first + 1; moment <= last; ++moment)
      if (const Sample& now = advance(moment); now.requested_in_all() > fullest.requested_in_all()) fullest = now;
    samples.push_back(fullest);
  }
  return samples;
}

}  // namespace poolgrad::examples
