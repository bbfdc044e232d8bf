// Getting pages: committing new ones, and moving free ones to where they are needed.
#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "allocator/base/address_sanitizer.h"
#include "allocator/base/rounding.h"
#include "allocator/error.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

namespace {

// Small enough that an address space of 2^40 bytes per device holds many, large enough that one is the rule.
constexpr std::size_t largest_window = std::size_t{64} << 30;
// What no device has is not asked for.
constexpr std::size_t most_addresses = std::size_t{1} << 42;
// Below it, releasing and committing pages costs no more than moving them.
constexpr std::size_t least_stitched = std::size_t{8} << 20;

// Up to both, committing new pages is preferred to moving idle ones, for which streams have to be waited for.
constexpr std::size_t most_idle = std::size_t{64} << 20;
constexpr std::size_t most_idle_share = 32;  // of what is reserved

// A call to the device costs the same for any number of bytes, so the fewer the better: until the budget comes near,
// where handles that a small block pins, and pages ahead of need, are what a request may lack.
constexpr std::size_t most_handle = std::size_t{256} << 20;
constexpr std::size_t most_ahead = std::size_t{128} << 20;
constexpr std::size_t most_ahead_share = 64;  // of what is reserved
constexpr std::size_t near_budget = 512;      // parts of what is unused

}  // namespace

bool Pool::add_window(Lock& lock, Arena& arena, const Need& need) {
  const std::size_t slack = need.alignment > page_ ? need.alignment : 0;
  if (need.size > most_addresses || slack > most_addresses) return false;
  void* address = nullptr;
  std::size_t size = 0;
  DeviceCall call(*this, lock, [&]() noexcept {
    if (address != nullptr) unreserve(lock, address, size);
  });
  call([&] {
    const std::size_t usual = std::min(round_up(memory_->info().total, page_), largest_window);
    size = std::max(round_up(need.size + slack, page_), usual);
    address = memory_->reserve(size);
  });
  if (address == nullptr) return false;
  try {
    arena.add_window(reinterpret_cast<std::uintptr_t>(address), size);
  } catch (const std::bad_alloc&) {
    return false;  // more addresses than can be kept account of
  }
  call.done();
  return true;
}

void Pool::unreserve(Lock& lock, void* address, std::size_t bytes) noexcept {
  DeviceCall call(*this, lock, Nothing{});
  call([&] { memory_->unreserve(address, bytes); });
}

std::size_t Pool::page_deficit(const Need& need) const {
  const Arena& arena = arena_for(need.tag);
  const Arena::Growth growth = arena.plan_growth(need.size, need.alignment, need.stream.id, page_);
  return growth.hole != nullptr ? growth.bytes : round_up(need.size, page_);
}

std::size_t Pool::unused_budget() const {
  return budget_ - std::min<std::size_t>(budget_, statistics_.reserved_bytes.current);
}

std::size_t Pool::growth_step(const Need& need) const {
  const std::size_t reserved = statistics_.reserved_bytes.current;
  // Large pages once they round the reserved bytes up by no more than a few percent.
  constexpr std::size_t large_page_share = 16;
  const std::size_t large = std::clamp(std::bit_floor(reserved / large_page_share), page_, large_page_);
  // A transient block that fills its pages has them to itself, so that they can go when it goes.
  const bool alone = !is_long_lived(need.tag.category) && arena_for(need.tag).fills_pages(need.size);
  if (alone || config_.mode == AllocatorMode::none) return large;
  return std::max(large, std::min({most_ahead, std::bit_floor(reserved / most_ahead_share),
                                   std::bit_floor(unused_budget() / near_budget)}));
}

std::size_t Pool::largest_handle() const {
  return std::clamp(round_down(unused_budget() / near_budget, page_), page_, std::max(page_, most_handle));
}

bool Pool::commit_handles(std::uintptr_t address, const std::vector<std::size_t>& sizes) {
  std::size_t committed = 0;
  const auto give_back = [&] {
    if (committed != 0) memory_->decommit(reinterpret_cast<void*>(address), committed);
  };
  try {
    for (const std::size_t size : sizes) {
      if (!memory_->commit(reinterpret_cast<void*>(address + committed), size)) {
        give_back();
        return false;
      }
      committed += size;
    }
  } catch (...) {
    give_back();
    throw;
  }
  return true;
}

std::size_t Pool::commit(Need& need) {
  Lock lock(mutex_);
  Arena& arena = arena_for(need.tag);
  std::size_t step = growth_step(need);
  std::size_t alignment = arena.preferred_alignment(need.size, need.alignment);
  const auto refuse = [&] {
    if (!std::exchange(need.refused, true)) ++statistics_.num_alloc_retries;
    return std::size_t{0};
  };
  while (true) {
    const Arena::Growth growth = arena.plan_growth(need.size, alignment, need.stream.id, step);
    const std::size_t pages = growth.hole != nullptr ? growth.bytes : round_up(need.size, page_);
    need.device_calls_seen = device_calls_ended_;
    if (pages > unused_budget()) {
      if (std::exchange(step, page_) == page_ && std::exchange(alignment, need.alignment) == need.alignment) {
        return refuse();
      }
      continue;
    }
    if (growth.hole == nullptr) {
      if (!add_window(lock, arena, need)) return refuse();
      continue;
    }
    if (commit_growth(lock, need, arena, growth)) {
      need.block = arena.take(need.size, need.alignment, need.stream.id);
      if (need.block != nullptr) return pages;
      // Another thread took the neighbours of the new pages meanwhile: grow again.
    } else if (std::exchange(step, page_) == page_ && std::exchange(alignment, need.alignment) == need.alignment) {
      return refuse();
    }
  }
}

bool Pool::commit_growth(Lock& lock, Need& need, Arena& arena, const Arena::Growth& growth) {
  Block* block = arena.begin_growth(growth, need.stream.id);
  // Reserved before the device is asked, so that the budget holds at every moment.
  statistics_.reserved_bytes.add(growth.bytes);
  DeviceCall call(*this, lock, [&]() noexcept {
    statistics_.reserved_bytes.subtract(growth.bytes);
    arena.uncommit(block);
  });
  const std::vector<std::size_t> sizes =
      memory_->divisible() ? std::vector{growth.bytes} : handle_sizes(growth.bytes, largest_handle());
  need.device_full = true;
  if (!call.timed(sizes.size(), [&] { return commit_handles(block->address, sizes); })) return false;
  call.done();
  need.device_full = false;
  ++statistics_.num_device_alloc;
  block->window->handles.set(block->address, sizes);
  record_pages(TraceKind::segment_map, block->address, growth.bytes);
  forbid_access(device_, reinterpret_cast<void*>(block->address), growth.bytes);
  block->epoch = tick_;
  arena.put(block);
  return true;
}

std::size_t Pool::idle_bytes(std::size_t enough) const {
  const std::size_t bytes = arenas_[0].releasable_bytes(enough);
  return bytes < enough ? bytes + arenas_[1].releasable_bytes(enough - bytes) : bytes;
}

// Where new pages can be had, those that lie idle are moved only if they are many.
std::size_t Pool::stitchable_bytes(const Need& need) const {
  if (!config_.stitch || !can_move_ || round_up(need.size, page_) < least_stitched) return 0;
  const std::size_t pages = page_deficit(need);
  const bool can_commit = !need.device_full && pages <= unused_budget();
  const std::size_t most = std::max<std::size_t>(most_idle, statistics_.reserved_bytes.current / most_idle_share);
  // Counting what lies idle means to walk all blocks; that it cannot be many is known at once.
  if (can_commit && arenas_[0].free_bytes() + arenas_[1].free_bytes() <= most) return 0;
  const std::size_t least = can_commit ? most + 1 : 1;
  const std::size_t idle = idle_bytes(least);
  return idle < least ? 0 : idle;
}

std::size_t Pool::stitch(Need& need) {
  Lock lock(mutex_);
  Arena& arena = arena_for(need.tag);
  // What the budget does not allow to commit is moved, and the rest of the run is committed afterwards; if all could be
  // committed, as much is moved as there is.
  const std::size_t allowed = need.device_full ? 0 : unused_budget() & ~(page_ - 1);
  std::size_t idle = 0;
  Arena::Growth growth;
  for (const std::size_t alignment : {arena.preferred_alignment(need.size, need.alignment), need.alignment}) {
    growth = arena.plan_growth(need.size, alignment, need.stream.id, page_);
    if (growth.hole == nullptr) return 0;
    const bool all_allowed = allowed >= growth.bytes;
    if (!all_allowed) growth.bytes -= allowed;
    idle = idle_bytes(growth.bytes);
    if (all_allowed) growth.bytes = std::min(growth.bytes, round_down(idle, page_));
    if (growth.bytes <= idle) break;
  }
  if (growth.bytes > idle) return 0;
  store_.reserve(3);
  Block* const spare = store_.make();  // so that what was moved can be kept, whatever happens then
  Block* target = arena.begin_growth(growth, need.stream.id);
  std::size_t moved = 0;
  {
    DeviceCall call(*this, lock, [&]() noexcept {
      store_.recycle(spare);
      if (moved == 0) {
        arena.uncommit(target);
        return;
      }
      if (moved < target->size) arena.uncommit(arena.split(target, moved));
      forbid_access(device_, reinterpret_cast<void*>(target->address), moved);
      target->epoch = tick_;
      arena.put(target);
    });
    while (moved < target->size) {
      const std::uintptr_t to = target->address + moved;
      const std::size_t step = move_handles(lock, *target->window, to, target->size - moved, target);
      if (step == 0) break;
      moved += step;
    }
  }
  return moved;
}

std::size_t Pool::move_handles(Lock& lock, Window& window, std::uintptr_t to, std::size_t bytes, const Block* target) {
  for (Arena& arena : arenas_) {
    Block* source = arena.take_movable_handles(bytes, target);
    if (source == nullptr) continue;
    DeviceCall call(*this, lock, [&]() noexcept { arena.put(source); });
    if (!settle(lock, std::nullopt, {{source->stream, source->ticket}})) return 0;
    const std::size_t size = source->size;
    const bool moved = call.timed(1, [&] {
      try {
        return memory_->move(reinterpret_cast<void*>(source->address), reinterpret_cast<void*>(to), size);
      } catch (const Error&) {
        return false;  // the device is broken; the next call that can say so will
      }
    });
    if (!moved) {
      can_move_ = false;
      return 0;
    }
    call.done();
    allow_access(device_, reinterpret_cast<void*>(source->address), size);
    source->window->handles.move(source->address, window.handles, to, size);
    record_pages(TraceKind::segment_unmap, source->address, size);
    record_pages(TraceKind::segment_map, to, size);
    arena.uncommit(source);
    return size;
  }
  return 0;
}

void Pool::record_pages(TraceKind kind, std::uintptr_t address, std::size_t bytes) {
  if (trace_.running()) record({.address = address, .size = bytes, .kind = kind});
}

}  // namespace poolgrad
