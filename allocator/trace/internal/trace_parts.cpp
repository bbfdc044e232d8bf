#include "allocator/trace/internal/trace_parts.h"

#include <algorithm>

#include "allocator/trace/internal/address_map.h"

namespace poolgrad {

namespace {

struct Allocation {
  std::uint64_t number = 0;
  std::uint64_t size = 0;
  std::uint32_t scope = 0;
  Category category = Category::unknown;
  bool live = false;
};

bool is_free(TraceKind kind) { return kind == TraceKind::free_requested || kind == TraceKind::free_completed; }
// The blocks that were there before the first event, numbered from 1.
AddressMap<Allocation> preexisting_of(const Trace& trace) {
  AddressMap<Allocation> first;
  std::uint64_t number = 0;
  for (const TraceEvent& event : trace.events) {
    const bool allocates = event.kind == TraceKind::allocate;
    if ((!allocates && !is_free(event.kind)) || first.find(event.address) != nullptr) continue;
    first.insert(event.address, {allocates ? 0 : ++number, event.size, event.scope, event.category, !allocates});
  }
  for (const BlockSnapshot& block : trace.blocks)
    if (block.is_held() && first.find(block.address) == nullptr)
      first.insert(block.address, {++number, block.requested, block.tag.scope, block.tag.category, true});
  return first;
}

}  // namespace

void number_allocations(Trace& trace) {
  AddressMap<Allocation> at = preexisting_of(trace);
  std::uint64_t number = 0;
  at.for_each([&](std::uint64_t, const Allocation& allocation) { number = std::max(number, allocation.number); });
  for (TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::allocate) {
      event.allocation = ++number;
      *at.find(event.address) = {number, event.size, event.scope, event.category, true};
    } else if (is_free(event.kind)) {
      Allocation& allocation = *at.find(event.address);
      event.allocation = allocation.number;
      if (!allocation.live) continue;  // freed twice: it is what it says
      event.size = allocation.size;
      event.scope = allocation.scope;
      event.category = allocation.category;
      if (event.kind == TraceKind::free_completed) allocation.live = false;
    }
  }
  for (BlockSnapshot& block : trace.blocks) {
    const Allocation* allocation = block.is_held() ? at.find(block.address) : nullptr;
    if (allocation == nullptr) continue;
    block.number = allocation->number;
    if (allocation->live) block.tag = {allocation->category, allocation->scope};
  }
}

std::vector<BlockSnapshot> tile_blocks(const std::vector<CommittedPiece>& pieces, std::vector<BlockSnapshot> held) {
  std::ranges::sort(held, {}, &BlockSnapshot::address);
  std::vector<BlockSnapshot> blocks;
  const auto fill = [&](std::uint64_t begin, std::uint64_t end, std::size_t window, BlockState state) {
    if (begin < end) blocks.push_back({.address = begin, .size = end - begin, .state = state, .window = window});
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
