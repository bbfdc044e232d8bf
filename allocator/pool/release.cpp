// Giving pages back to the device: for a need, on request, for a smaller budget, with age.
#include <algorithm>

#include "allocator/base/address_sanitizer.h"
#include "allocator/error.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

bool Pool::join_mixed_handles(Lock& lock) {
  for (Arena& arena : arenas_) {
    const std::vector<Block*> run = arena.take_mixed_handles();
    if (run.empty()) continue;
    DeviceCall call(*this, lock, [&]() noexcept {
      for (Block* block : run) arena.put(block);
    });
    std::vector<Stamp> stamps;
    for (const Block* block : run) stamps.push_back({block->stream, block->ticket});
    if (!settle(lock, std::nullopt, stamps)) return false;
    call.done();
    Block* block = arena.join(run);
    block->ticket = 0;  // nobody's work is left on it
    arena.put(block);
    return true;
  }
  return false;
}

std::pair<Arena*, Block*> Pool::least_recently_used() {
  std::pair<Arena*, Block*> oldest{nullptr, nullptr};
  for (Arena& arena : arenas_) {
    Block* block = arena.least_recently_used();
    if (block != nullptr && (oldest.second == nullptr || block->epoch < oldest.second->epoch)) oldest = {&arena, block};
  }
  return oldest;
}

std::size_t Pool::release_from(Lock& lock, Arena& arena, Block* block, std::size_t bytes) {
  Block* pages = arena.take_handles(block, bytes);
  DeviceCall call(*this, lock, [&]() noexcept { arena.put(pages); });
  if (!settle(lock, std::nullopt, {{pages->stream, pages->ticket}})) return 0;
  call.timed(1, [&] {
    allow_access(device_, reinterpret_cast<void*>(pages->address), pages->size);
    memory_->decommit(reinterpret_cast<void*>(pages->address), pages->size);
  });
  call.done();
  ++statistics_.num_device_free;
  statistics_.reserved_bytes.subtract(pages->size);
  record_pages(TraceKind::segment_unmap, pages->address, pages->size);
  const std::size_t released = pages->size;
  arena.uncommit(pages);
  return released;
}

std::size_t Pool::release(Lock& lock, std::size_t bytes) {
  std::size_t released = 0;
  while (released < bytes) {
    const auto [arena, oldest] = least_recently_used();
    if (oldest == nullptr) {
      if (join_mixed_handles(lock)) continue;
      break;
    }
    const std::size_t step = release_from(lock, *arena, oldest, bytes - released);
    if (step == 0) break;
    released += step;
  }
  return released;
}

std::size_t Pool::release_for(Need& need) {
  Lock lock(mutex_);
  std::size_t released = 0;
  // What is released may be the very neighbour that the plan counted on, so the deficit is worked out anew each time.
  while (true) {
    const std::size_t pages = page_deficit(need);
    const std::size_t allowed = unused_budget();
    std::size_t missing = pages > allowed ? pages - allowed : 0;
    if (need.device_full && released < pages) missing = std::max(missing, pages - released);
    if (missing == 0) return released;
    const std::size_t step = release(lock, missing);
    if (step == 0) return released;
    released += step;
  }
}

bool Pool::decay_is_due() {
  if (config_.decay != 0 && tick_ >= decay_due_) return true;
  if (config_.decay_ms == 0) return false;
  const auto now = std::chrono::steady_clock::now();
  const auto age = std::chrono::milliseconds(std::min<std::size_t>(config_.decay_ms, std::size_t{1} << 40));
  const auto far = [&](std::size_t from_end) {
    const std::size_t marks = tick_marks_.size();
    const auto later = from_end == 0 ? now : tick_marks_[marks - from_end].time;
    return marks <= from_end || later - tick_marks_[marks - from_end - 1].time >= age / 16;
  };
  if (far(0) || far(1)) tick_marks_.emplace_back();
  tick_marks_.back() = {now, tick_};
  // Of the marks that are old enough only the newest counts, and once.
  const auto young = std::ranges::find_if(tick_marks_, [&](const TickMark& mark) { return now - mark.time < age; });
  if (young == tick_marks_.begin()) return false;
  decayed_mark_ = std::prev(young)->tick;
  tick_marks_.erase(tick_marks_.begin(), young);
  return true;
}

void Pool::release_decayed(Lock& lock) {
  const auto old = [&](std::uint64_t epoch) {
    return (config_.decay != 0 && tick_ - epoch >= config_.decay) || (decayed_mark_ != 0 && epoch <= decayed_mark_);
  };
  while (true) {
    const auto [arena, oldest] = least_recently_used();
    // What is given back from now on is younger than what is there.
    const std::uint64_t youngest = oldest != nullptr ? oldest->epoch : tick_;
    decay_due_ = youngest + std::min<std::uint64_t>(config_.decay, UINT64_MAX - youngest);
    if (oldest == nullptr || !old(oldest->epoch)) return;
    if (release_from(lock, *arena, oldest, SIZE_MAX) == 0) return;
  }
}

std::size_t Pool::trim(std::size_t bytes) {
  const std::size_t released = release_cached(bytes);
  tidy();
  return released;
}

std::size_t Pool::release_cached(std::size_t bytes) {
  if (planner_ != nullptr) give_up_plan(false);
  drain_magazines();
  poll_pending();
  Lock lock(mutex_);
  const std::size_t released = release(lock, bytes);
  if (released >= bytes || pending_.empty()) return released;
  lock.unlock();
  synchronise_pending();
  lock.lock();
  return released + release(lock, bytes - released);
}

std::size_t Pool::pinned_bytes() const {
  return statistics_.reserved_bytes.current - arenas_[0].releasable_bytes() - arenas_[1].releasable_bytes();
}

// What pages are pinned beyond `wanted` bytes once whoever could give something up has been asked.
std::size_t Pool::press_pinned_below(std::size_t wanted) {
  const auto excess = [&] {
    drain_magazines();
    poll_pending();
    synchronise_pending();
    const std::lock_guard lock(mutex_);
    const std::size_t pinned = pinned_bytes();
    return pinned > wanted ? pinned - wanted : 0;
  };
  std::size_t left = excess();
  if (left == 0) return 0;
  for (const auto& client : clients(std::numeric_limits<double>::infinity())) {
    const EmergencyLadder::Running running(std::max(client->kind(), RungId::derived_cache));
    // For what is needed, then, as its blocks may share pages with others, for all it has.
    for (const bool all : {false, true}) {
      if (left == 0) return 0;
      if (client->estimate() == 0 || client->reclaim(all ? SIZE_MAX : left) == 0) break;
      left = excess();
    }
  }
  return left;
}

void Pool::set_budget(std::size_t bytes) {
  const std::size_t wanted = bytes != 0 ? bytes : memory_->info().total;
  if (planner_ != nullptr) give_up_plan(false);
  press_pinned_below(wanted);
  Lock lock(mutex_);
  const std::size_t previous = budget_;
  const std::size_t pinned = pinned_bytes();
  if (pinned > wanted) {
    throw ValueError("[set_budget] live memory holds " + format_bytes(pinned) + " of pages on " + to_string(device_) +
                     ", more than the new budget of " + format_bytes(wanted));
  }
  budget_ = wanted;
  try {
    while (statistics_.reserved_bytes.current > budget_) {
      if (release(lock, statistics_.reserved_bytes.current - budget_) != 0) continue;
      // Another thread took the cached pages first.
      throw ValueError("[set_budget] " + to_string(device_) +
                       " could not give back enough cached pages for a budget of " + format_bytes(wanted));
    }
  } catch (...) {
    budget_ = previous;
    throw;
  }
}

}  // namespace poolgrad
