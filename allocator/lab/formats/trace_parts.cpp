#include "allocator/lab/formats/trace_parts.h"

#include <algorithm>

#include "allocator/lab/formats/address_map.h"

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
// The blocks that existed before the first event, numbered from 1.
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
      if (!allocation.live) continue;  // freed twice: keep the event's own fields
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

namespace {

constexpr std::uint64_t largest_time_us = std::uint64_t{1} << 53, largest_end = std::uint64_t{1} << 63;

bool exceeds(std::uint64_t address, std::uint64_t size) { return size > largest_end || address > largest_end - size; }

std::string at_address(std::uint64_t bytes, std::uint64_t address) {
  return std::to_string(bytes) + " bytes at address " + std::to_string(address);
}

/// Tracks live allocations while it reads the events of a trace in order.
class Lifetimes {
 public:
  explicit Lifetimes(AllocationNames naming) : naming_(naming) {}

  const char* fault_of(const TraceEvent& event) {
    switch (event.kind) {
      case TraceKind::allocate: return allocate(event);
      case TraceKind::free_requested: return free(event);
      case TraceKind::stream_use: {
        const bool* const live = find(event.allocation, event.address);
        return live != nullptr && !*live ? "a stream uses a block that was freed" : nullptr;
      }
      default: return nullptr;
    }
  }
  /// Of a block that is live at the end.
  bool was_freed(const BlockSnapshot& block) {
    const bool* const live = find(block.number, block.address);
    return live != nullptr && !*live;
  }

 private:
  using Live = AddressMap<bool>;
  bool by_number(std::uint64_t number) const { return naming_ == AllocationNames::numbers && number != 0; }
  bool* find(std::uint64_t number, std::uint64_t address) {
    return by_number(number) ? numbers_.find(number) : addresses_.find(address);
  }
  void set(std::uint64_t number, std::uint64_t address, bool live) {
    if (bool* const known = find(number, address))
      *known = live;
    else
      by_number(number) ? numbers_.insert(number, live) : addresses_.insert(address, live);
  }
  const char* allocate(const TraceEvent& event) {
    const bool* const live = find(event.allocation, event.address);
    if (live != nullptr && (by_number(event.allocation) || *live))
      return by_number(event.allocation) ? "an allocation happens twice" : "a block is allocated while it is live";
    set(event.allocation, event.address, true);
    return nullptr;
  }
  const char* free(const TraceEvent& event) {
    const bool* const live = find(event.allocation, event.address);
    if (live != nullptr && !*live) return "a block is freed twice";
    set(event.allocation, event.address, false);
    return nullptr;
  }

  AllocationNames naming_;
  Live numbers_, addresses_;
};

std::optional<std::string> fault_of_blocks(const std::vector<BlockSnapshot>& blocks, Lifetimes& lifetimes) {
  std::vector<const BlockSnapshot*> ordered;
  for (const BlockSnapshot& block : blocks) ordered.push_back(&block);
  std::ranges::stable_sort(ordered, {}, &BlockSnapshot::address);
  std::uint64_t end = 0;
  for (const BlockSnapshot* block : ordered) {
    const auto fault = [&](const std::string& reason) {
      return reason + ": " + at_address(block->size, block->address);
    };
    if (exceeds(block->address, block->size)) return fault("a block ends beyond 2^63");
    if (block->is_held() && block->requested > block->size) return fault("a block is smaller than its request");
    if (block->address < end) return fault("a block overlaps another");
    if (block->state == BlockState::live && lifetimes.was_freed(*block))
      return fault("a block is live at the end though it was freed");
    end = block->address + block->size;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> fault_of(const Trace& trace, AllocationNames naming) {
  if (trace.start_us > largest_time_us) return "its start is beyond 2^53 microseconds";
  if (trace.lost > largest_time_us) return "more than 2^53 events are lost";
  Lifetimes lifetimes(naming);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    const auto fault = [&](const std::string& reason) {
      return reason + ": " + at_address(event.size, event.address) + " (event " + std::to_string(i) + " of " +
             std::to_string(trace.events.size()) + ")";
    };
    if (event.time / 1000 > largest_time_us - trace.start_us) return fault("a time is beyond 2^53 microseconds");
    if (exceeds(event.address, event.size) || exceeds(event.address, event.size + event.slack))
      return fault("a range ends beyond 2^63");
    if (const char* const reason = lifetimes.fault_of(event)) return fault(reason);
  }
  return fault_of_blocks(trace.blocks, lifetimes);
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
