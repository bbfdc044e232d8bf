#include "examples/lab/history.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "allocator/base/salted_map.h"
#include "allocator/error.h"

namespace poolgrad::examples {

namespace {

/// Clips a range from a file to the address space.
std::uint64_t clipped(std::uint64_t address, std::uint64_t size) {
  return std::min(size, std::numeric_limits<std::uint64_t>::max() - address);
}

class BlockHistory {
 public:
  explicit BlockHistory(Moment last) : last_(last) {}

  void allocate(const TraceEvent& event, Moment now) {
    if (const auto there = open_.find(event.address); there != open_.end()) close(there->second, now);
    open_[event.address] = begin(event, now);
  }

  void give_back(const TraceEvent& event, Moment now) { blocks_[find(event)].given_back = now; }

  void complete(const TraceEvent& event, Moment now) {
    close(find(event), now);
    open_.erase(event.address);
  }

  /// Adds a block that is live at the end; without an allocation event it existed before the trace.
  void remains(const BlockSnapshot& block) {
    if (!block.is_held() || open_.contains(block.address)) return;
    BlockLife& life = blocks_.emplace_back();
    life = {.address = block.address, .requested = block.requested, .number = block.number};
    life.size = clipped(block.address, block.size);
    life.scope = block.tag.scope;
    life.category = block.tag.category;
    life.given_back = block.state == BlockState::pending ? 0 : last_;
    life.end = last_;
  }

  std::vector<BlockLife> finish() {
    std::ranges::stable_sort(blocks_, {}, &BlockLife::begin);
    return std::move(blocks_);
  }

 private:
  std::size_t begin(const TraceEvent& event, Moment now) {
    BlockLife life{.address = event.address, .requested = event.size, .number = event.allocation};
    life.size = clipped(event.address, event.size + event.slack);
    life.location = event.location;
    life.scope = event.scope;
    life.stream = event.stream;
    life.begin = now;
    life.given_back = life.end = last_;
    life.category = event.category;
    blocks_.push_back(life);
    return blocks_.size() - 1;
  }

  void close(std::size_t index, Moment now) {
    BlockLife& life = blocks_[index];
    life.given_back = std::min(life.given_back, now);
    life.end = now;
  }

  /// The block of the event; an unknown one existed before the trace.
  std::size_t find(const TraceEvent& event) {
    if (const auto there = open_.find(event.address); there != open_.end()) return there->second;
    const std::size_t index = begin(event, 0);
    blocks_[index].location = 0;  // the event's location is that of the free
    return open_[event.address] = index;
  }

  Moment last_;
  std::vector<BlockLife> blocks_;
  SaltedMap<std::size_t> open_;  // by address
};

/// Disjoint page ranges with the moment of their commit.
class PageHistory {
 public:
  void map(std::uint64_t address, std::uint64_t size, Moment now) {
    unmap(address, size, now);
    if (size > 0) open_[address] = {clipped(address, size), now};
  }

  void unmap(std::uint64_t address, std::uint64_t size, Moment now) {
    const std::uint64_t end = address + clipped(address, size);
    auto it = open_.upper_bound(address);
    if (it != open_.begin()) --it;
    while (it != open_.end() && it->first < end) {
      const auto [from, range] = *it;
      const std::uint64_t to = from + range.size;
      if (to <= address) {
        ++it;
        continue;
      }
      it = open_.erase(it);
      const std::uint64_t low = std::max(from, address), high = std::min(to, end);
      if (now > range.since) closed_.push_back({low, high - low, range.since, now});
      if (from < low) open_[from] = {low - from, range.since};
      if (high < to) it = open_.insert({high, {to - high, range.since}}).first;
    }
  }

  /// Moves the begin of all mapped ranges to moment 0.
  void restart() {
    closed_.clear();
    for (auto& [address, range] : open_) range.since = 0;
  }

  std::vector<PageLife> finish(Moment last) {
    for (const auto& [address, range] : open_) closed_.push_back({address, range.size, range.since, last});
    std::ranges::stable_sort(closed_, {}, &PageLife::begin);
    return std::move(closed_);
  }

 private:
  struct Range {
    std::uint64_t size;
    Moment since;
  };
  std::map<std::uint64_t, Range> open_;
  std::vector<PageLife> closed_;
};

std::vector<PageLife> pages_of(const Trace& trace) {
  PageHistory pages;
  for (const BlockSnapshot& block : trace.blocks)
    if (block.state != BlockState::uncommitted) pages.map(block.address, block.size, 0);
  for (auto event = trace.events.rbegin(); event != trace.events.rend(); ++event) {  // undo back to the beginning
    if (event->kind == TraceKind::segment_map) pages.unmap(event->address, event->size, 0);
    if (event->kind == TraceKind::segment_unmap) pages.map(event->address, event->size, 0);
  }
  pages.restart();
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    if (event.kind == TraceKind::segment_map) pages.map(event.address, event.size, static_cast<Moment>(i + 1));
    if (event.kind == TraceKind::segment_unmap) pages.unmap(event.address, event.size, static_cast<Moment>(i + 1));
  }
  return pages.finish(static_cast<Moment>(trace.events.size() + 1));
}

/// Differences at one moment, modulo 2^64.
struct Change {
  Moment moment;
  std::size_t category;
  std::uint64_t requested, live, pending, reserved;
};

std::vector<Change> changes_of(const History& history) {
  std::vector<Change> changes;
  for (const BlockLife& block : history.blocks) {
    const auto category = std::min(static_cast<std::size_t>(block.category), category_count - 1);
    changes.push_back({block.begin, category, block.requested, block.size, 0, 0});
    changes.push_back({block.given_back, category, -block.requested, -block.size, block.size, 0});
    changes.push_back({block.end, category, 0, 0, -block.size, 0});
  }
  for (const PageLife& page : history.pages) {
    changes.push_back({page.begin, 0, 0, 0, 0, page.size});
    changes.push_back({page.end, 0, 0, 0, 0, -page.size});
  }
  std::ranges::stable_sort(changes, {}, &Change::moment);
  return changes;
}

}  // namespace

History history_of(const Trace& trace) {
  if (trace.events.size() >= std::numeric_limits<Moment>::max() - 2)
    throw ValueError("[history] a trace of " + std::to_string(trace.events.size()) + " events is too long");
  BlockHistory blocks(static_cast<Moment>(trace.events.size() + 1));
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    const auto now = static_cast<Moment>(i + 1);
    if (event.kind == TraceKind::allocate) blocks.allocate(event, now);
    if (event.kind == TraceKind::free_requested) blocks.give_back(event, now);
    if (event.kind == TraceKind::free_completed) blocks.complete(event, now);
  }
  for (const BlockSnapshot& block : trace.blocks) blocks.remains(block);
  return {blocks.finish(), pages_of(trace)};
}

std::vector<AddressRange> used_addresses(const History& history) {
  constexpr std::uint64_t gap = std::uint64_t{2} << 20;
  std::vector<AddressRange> ranges;
  for (const BlockLife& block : history.blocks) ranges.push_back({block.address, block.size});
  for (const PageLife& page : history.pages) ranges.push_back({page.address, page.size});
  std::ranges::sort(ranges, {}, &AddressRange::address);
  std::vector<AddressRange> result;
  for (const AddressRange& range : ranges) {
    if (result.empty() || range.address - result.back().address > result.back().size + gap)
      result.push_back(range);
    else
      result.back().size = std::max(result.back().size, range.address - result.back().address + range.size);
  }
  return result;
}

std::uint64_t Sample::requested_in_all() const {
  return std::accumulate(requested.begin(), requested.end(), std::uint64_t{0});
}

std::vector<Sample> samples_of(const History& history, std::size_t events, std::size_t most) {
  const std::vector<Change> changes = changes_of(history);
  auto change = changes.begin();
  Sample state;
  const auto advance = [&](std::size_t moment) -> const Sample& {
    for (; change != changes.end() && change->moment <= moment; ++change) {
      state.requested[change->category] += change->requested;
      state.live += change->live;
      state.pending += change->pending;
      state.reserved += change->reserved;
    }
    state.moment = static_cast<Moment>(moment);
    return state;
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
