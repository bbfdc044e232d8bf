#include "allocator/lab/formats/trace_window.h"

#include <algorithm>
#include <map>
#include <utility>

#include "allocator/lab/formats/trace_parts.h"

namespace poolgrad {

namespace {

/// Disjoint address ranges; adjacent ranges merge.
class AddressRanges {
 public:
  /// Returns false, changing nothing, if any byte is already present.
  bool add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return false;
    auto after = ranges_.lower_bound(begin);
    if (after != ranges_.end() && after->first < end) return false;
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      if (before->second > begin) return false;
      if (before->second == begin) {
        begin = before->first;
        ranges_.erase(before);
      }
    }
    if (after != ranges_.end() && after->first == end) {
      end = after->second;
      ranges_.erase(after);
    }
    ranges_.emplace(begin, end);
    return true;
  }
  /// Returns false, changing nothing, if any byte is missing.
  bool remove(std::uint64_t begin, std::uint64_t end) {
    if (!contains(begin, end)) return false;
    const auto range = std::prev(ranges_.upper_bound(begin));
    const auto [whole_begin, whole_end] = *range;
    ranges_.erase(range);
    if (whole_begin < begin) ranges_.emplace(whole_begin, begin);
    if (end < whole_end) ranges_.emplace(end, whole_end);
    return true;
  }
  bool contains(std::uint64_t begin, std::uint64_t end) const {
    const auto after = ranges_.upper_bound(begin);
    return begin < end && after != ranges_.begin() && std::prev(after)->second >= end;
  }

  const std::map<std::uint64_t, std::uint64_t>& ranges() const { return ranges_; }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
};

// 0 if the range would wrap around.
std::uint64_t end_of(std::uint64_t address, std::uint64_t size) {
  return size > std::numeric_limits<std::uint64_t>::max() - address ? 0 : address + size;
}

/// The state of a pool at one moment of a trace, found by undoing events from the end.
class PoolState {
 public:
  /// The state at the end of the trace. Leaves out blocks that overlap one of a lower address.
  explicit PoolState(const Trace& trace) : trace_(trace), final_(trace.blocks) {
    std::ranges::stable_sort(final_, {}, &BlockSnapshot::address);
    std::uint64_t end = 0;
    std::erase_if(final_, [&](const BlockSnapshot& block) {
      const std::uint64_t block_end = end_of(block.address, block.size);
      if (block.address < end || block_end <= block.address) return true;
      end = block_end;
      return false;
    });
    for (BlockSnapshot& block : final_) {
      const std::uint64_t block_end = block.address + block.size;
      if (windows_.empty() || windows_.back().window != block.window || windows_.back().end != block.address)
        windows_.push_back({block.address, block.address, block.window});
      windows_.back().end = block_end;
      block.requested = std::min(block.requested, block.size);
      block.tag = known(block.tag);
      if (block.state != BlockState::uncommitted) committed_.add(block.address, block_end);
      if (block.is_held()) held_.emplace(block.address, block);
    }
  }

  /// Undoes the event. Returns false, changing nothing, if it contradicts the state.
  bool undo(const TraceEvent& event) {
    const bool done = take_back(event);
    changed_ = changed_ || done;
    return done;
  }

  std::uint64_t committed_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& [begin, end] : committed_.ranges()) bytes += end - begin;
    return bytes;
  }

  /// All blocks by window, uncommitted ones too. Free neighbors merge once anything was undone.
  std::vector<BlockSnapshot> blocks() const {
    if (!changed_) return final_;
    return tile_blocks(committed_by_window(), held());
  }

  /// Live and pending blocks, by address.
  std::vector<BlockSnapshot> held() const {
    std::vector<BlockSnapshot> blocks;
    for (const auto& [address, block] : held_) blocks.push_back(block);
    return blocks;
  }

 private:
  /// Whether any of these bytes belongs to a block.
  bool is_held(std::uint64_t begin, std::uint64_t end) const {
    const auto after = held_.lower_bound(end);
    if (after == held_.begin()) return false;
    const BlockSnapshot& last = std::prev(after)->second;
    return last.address + last.size > begin;
  }

  Tag known(Tag tag) const {
    return {static_cast<std::size_t>(tag.category) < category_count ? tag.category : Category::unknown,
            tag.scope < trace_.scopes.size() ? tag.scope : 0};
  }

  bool take_back(const TraceEvent& event) {
    const auto at = held_.find(event.address);
    const bool held = at != held_.end(), live = held && at->second.state == BlockState::live;
    const std::uint64_t end = end_of(event.address, event.size);
    switch (event.kind) {
      case TraceKind::free_completed: return !held && take_back_completion(event);
      case TraceKind::free_requested:
        if (!held || live) return false;
        at->second.state = BlockState::live;
        return true;
      case TraceKind::allocate:
        if (!live) return false;
        held_.erase(at);
        return true;
      case TraceKind::segment_map: return !is_held(event.address, end) && committed_.remove(event.address, end);
      case TraceKind::segment_unmap: return committed_.add(event.address, end);
      case TraceKind::stage:
      case TraceKind::out_of_memory:
      case TraceKind::stream_use:
      case TraceKind::stream_order:
      case TraceKind::step: return true;
    }
    return false;
  }

  bool take_back_completion(const TraceEvent& event) {
    const std::uint64_t size = std::max<std::uint64_t>(event.size + event.slack, 1);
    const std::uint64_t end = event.size > size ? 0 : end_of(event.address, size);
    if (!committed_.contains(event.address, end) || is_held(event.address, end)) return false;
    held_[event.address] = {.address = event.address,
                            .size = size,
                            .state = BlockState::pending,
                            .stream = event.stream < trace_.streams.size() ? trace_.streams[event.stream] : 0,
                            .number = event.allocation,
                            .requested = event.size,
                            .tag = known({event.category, event.scope})};
    return true;
  }

  // Committed ranges, split at window boundaries. Ranges outside all remaining windows get new numbers.
  std::vector<CommittedPiece> committed_by_window() const {
    std::size_t next_number = 0;
    for (const CommittedPiece& window : windows_) next_number = std::max(next_number, window.window + 1);
    std::vector<CommittedPiece> pieces;
    auto window = windows_.begin();
    for (const auto& [start, end] : committed_.ranges()) {
      std::uint64_t begin = start;
      while (begin < end) {
        while (window != windows_.end() && window->end <= begin) ++window;
        if (window == windows_.end() || window->begin >= end) {
          pieces.push_back({begin, end, next_number++});
          break;
        }
        if (begin < window->begin) {
          pieces.push_back({begin, window->begin, next_number++});
          begin = window->begin;
        }
        const std::uint64_t cut = std::min(end, window->end);
        pieces.push_back({begin, cut, window->window});
        begin = cut;
      }
    }
    return pieces;
  }

  const Trace& trace_;
  std::vector<BlockSnapshot> final_;             // by address
  std::vector<CommittedPiece> windows_;          // by address
  std::map<std::uint64_t, BlockSnapshot> held_;  // live and pending ones, by address
  AddressRanges committed_;
  bool changed_ = false;
};

bool is_of_block(TraceKind kind) {
  return kind == TraceKind::allocate || kind == TraceKind::free_requested || kind == TraceKind::free_completed;
}

}  // namespace

WindowedTrace cut_trace(const Trace& trace, const TraceWindow& window) {
  const std::size_t to = std::min(window.to, trace.events.size());
  const std::size_t from = std::min(window.from, to);

  WindowedTrace result{.trace = {.device = trace.device,
                                 .start_us = trace.start_us,
                                 .lost = trace.lost + from,
                                 .settings = trace.settings,
                                 .events = {},
                                 .streams = trace.streams,
                                 .scopes = trace.scopes,
                                 .locations = trace.locations,
                                 .blocks = {}},
                       .before = {}};
  Trace& cut = result.trace;
  if (cut.streams.empty()) cut.streams.push_back(0);
  if (cut.scopes.empty()) cut.scopes.emplace_back();
  if (cut.locations.empty()) cut.locations.emplace_back();

  PoolState state(trace);
  std::vector<char> keep(trace.events.size());
  std::map<std::uint64_t, std::vector<std::size_t>> small;  // later events of requests that are left out, by address
  const auto undo = [&](std::size_t end, std::size_t begin, std::uint64_t min_size) {
    for (std::size_t i = end; i-- > begin;) {
      const TraceEvent& event = trace.events[i];
      keep[i] = state.undo(event);
      if (keep[i] == 0) {
        ++result.contradictions;
        continue;
      }
      if (event.kind == TraceKind::free_completed && event.size < min_size) small[event.address] = {};
      const auto omitted = small.find(event.address);
      if (omitted == small.end() || !is_of_block(event.kind)) continue;
      omitted->second.push_back(i);
      if (event.kind != TraceKind::allocate) continue;
      for (const std::size_t of_block : omitted->second) keep[of_block] = 0;
      small.erase(omitted);
    }
  };
  undo(trace.events.size(), to, 0);
  cut.blocks = state.blocks();
  undo(to, from, window.min_size);
  for (const auto& [address, events] : small)
    for (const std::size_t of_block : events) keep[of_block] = 0;
  result.before = state.held();
  std::erase_if(result.before, [&](const BlockSnapshot& block) { return small.contains(block.address); });
  result.reserved_before = state.committed_bytes();

  cut.events.reserve(to - from);
  std::uint64_t time = 0;
  for (std::size_t i = from; i < to; ++i) {
    if (keep[i] == 0) continue;
    TraceEvent& event = cut.events.emplace_back(trace.events[i]);
    event.time = time = std::max(time, event.time);
    if (event.stream >= cut.streams.size()) event.stream = 0;
    if (event.scope >= cut.scopes.size()) event.scope = 0;
    if (event.location >= cut.locations.size()) event.location = 0;
    if (static_cast<std::size_t>(event.category) >= category_count) event.category = Category::unknown;
  }
  return result;
}

}  // namespace poolgrad
