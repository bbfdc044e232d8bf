#include "allocator/trace/internal/pool_state.h"

#include <algorithm>

namespace poolgrad {

bool AddressRanges::add(std::uint64_t begin, std::uint64_t end) {
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

bool AddressRanges::contains(std::uint64_t begin, std::uint64_t end) const {
  const auto after = ranges_.upper_bound(begin);
  return begin < end && after != ranges_.begin() && std::prev(after)->second >= end;
}

bool AddressRanges::remove(std::uint64_t begin, std::uint64_t end) {
  if (!contains(begin, end)) return false;
  const auto range = std::prev(ranges_.upper_bound(begin));
  const auto [whole_begin, whole_end] = *range;
  ranges_.erase(range);
  if (whole_begin < begin) ranges_.emplace(whole_begin, begin);
  if (end < whole_end) ranges_.emplace(end, whole_end);
  return true;
}

namespace {

// 0 where the range would wrap around.
std::uint64_t end_of(std::uint64_t address, std::uint64_t size) {
  return size > std::numeric_limits<std::uint64_t>::max() - address ? 0 : address + size;
}

}  // namespace

PoolState::PoolState(const Trace& trace) : trace_(&trace), final_(trace.blocks) {
  std::stable_sort(final_.begin(), final_.end(),
                   [](const BlockSnapshot& a, const BlockSnapshot& b) { return a.address < b.address; });
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
    if (block.tag.scope >= trace.scopes.size()) block.tag.scope = 0;
    if (static_cast<std::size_t>(block.tag.category) >= category_count) block.tag.category = Category::unknown;
    if (block.state != BlockState::uncommitted) committed_.add(block.address, block_end);
    if (block.is_held()) held_.insert(block.address, {block});
  }
}

bool PoolState::undo_free_completed(const TraceEvent& event, std::size_t index) {
  const std::uint64_t size = std::max<std::uint64_t>(event.size + event.slack, 1);
  const std::uint64_t end = event.size > size ? 0 : end_of(event.address, size);
  if (held_.find(event.address) != nullptr || !committed_.contains(event.address, end)) return false;
  Held held;
  held.block.address = event.address;
  held.block.size = size;
  held.block.requested = event.size;
  held.block.state = BlockState::pending;
  held.block.number = event.allocation;
  held.block.stream = event.stream < trace_->streams.size() ? trace_->streams[event.stream] : 0;
  held.block.tag = {static_cast<std::size_t>(event.category) < category_count ? event.category : Category::unknown,
                    event.scope < trace_->scopes.size() ? event.scope : 0};
  held.free_completed = index;
  held_.insert(event.address, held);
  return true;
}

bool PoolState::undo(const TraceEvent& event, std::size_t index, Held* ended) {
  const auto take_back = [&]() -> bool {
    switch (event.kind) {
      case TraceKind::free_completed: return undo_free_completed(event, index);
      case TraceKind::free_requested: {
        Held* held = held_.find(event.address);
        if (held == nullptr || held->block.state != BlockState::pending) return false;
        held->block.state = BlockState::live;
        held->free_requested = index;
        return true;
      }
      case TraceKind::allocate: {
        const Held* held = held_.find(event.address);
        if (held == nullptr || held->block.state != BlockState::live) return false;
        if (ended != nullptr) *ended = *held;
        held_.erase(event.address);
        return true;
      }
      case TraceKind::segment_map: return committed_.remove(event.address, end_of(event.address, event.size));
      case TraceKind::segment_unmap: return committed_.add(event.address, end_of(event.address, event.size));
      case TraceKind::rung:
      case TraceKind::out_of_memory:
      case TraceKind::stream_use:
      case TraceKind::stream_order:
      case TraceKind::step: return true;
    }
    return false;
  };
  const bool done = take_back();
  changed_ = changed_ || done;
  return done;
}

// Committed ranges, cut where windows begin and end. Those outside every window that is left get new numbers.
std::vector<CommittedPiece> PoolState::committed_by_window() const {
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

std::uint64_t PoolState::committed_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [begin, end] : committed_.ranges()) bytes += end - begin;
  return bytes;
}

std::vector<BlockSnapshot> PoolState::blocks() const {
  if (!changed_) return final_;
  std::vector<BlockSnapshot> held;
  held_.for_each([&](std::uint64_t, const Held& entry) { held.push_back(entry.block); });
  return tile_blocks(committed_by_window(), std::move(held));
}

std::vector<BlockSnapshot> tile_blocks(const std::vector<CommittedPiece>& pieces, std::vector<BlockSnapshot> held) {
  std::sort(held.begin(), held.end(),
            [](const BlockSnapshot& a, const BlockSnapshot& b) { return a.address < b.address; });
  std::vector<BlockSnapshot> blocks;
  const auto fill = [&](std::uint64_t begin, std::uint64_t end, std::size_t window, BlockState state) {
    if (begin >= end) return;
    BlockSnapshot& block = blocks.emplace_back();
    block.address = begin;
    block.size = end - begin;
    block.state = state;
    block.window = window;
  };
  auto next = held.begin();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [begin, end, window] = pieces[i];
    std::uint64_t at = begin;
    for (; next != held.end() && next->address < end; ++next) {
      if (next->address < at || next->size > end - next->address) continue;
      fill(at, next->address, window, BlockState::free);
      blocks.push_back(*next);
      blocks.back().window = window;
      at = next->address + next->size;
    }
    fill(at, end, window, BlockState::free);
    if (i + 1 < pieces.size() && pieces[i + 1].window == window)
      fill(end, pieces[i + 1].begin, window, BlockState::uncommitted);
  }
  return blocks;
}

}  // namespace poolgrad
