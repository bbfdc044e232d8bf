#include "allocator/trace/internal/trace_names.h"

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

}  // namespace poolgrad
