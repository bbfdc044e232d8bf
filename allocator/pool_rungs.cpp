#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "allocator/address_sanitizer.h"
#include "allocator/error.h"
#include "allocator/pool.h"

namespace poolgrad {

namespace {

// Small enough that an address space of 2^40 bytes per device holds many, large enough that one is the rule.
constexpr std::size_t largest_window = std::size_t{64} << 30;

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) & ~(multiple - 1); }

}  // namespace

std::vector<Rung> Pool::rungs() {
  const auto locked = [this](auto function) {
    return [this, function](Need& need) -> std::size_t {
      const std::lock_guard lock(mutex_);
      return function(need);
    };
  };
  const auto pending = locked([this](Need&) { return pending_bytes(); });
  const auto others = locked([this](Need& need) { return other_streams_bytes(need); });
  std::vector<Rung> all = {
      {"poll pending frees", pending, [this](Need&) { return poll_pending(false); }},
      {"take from other streams", others, [this](Need& need) { return take_from_other_streams(need); }},
      {"coalesce streams", others, [this](Need& need) { return take_across_streams(need); }},
      {"commit", [](Need& need) { return need.size; }, [this](Need& need) { return commit(need); }},
      {"release cached pages",
       locked([this](Need&) { return arenas_[0].releasable_bytes() + arenas_[1].releasable_bytes(); }),
       [this](Need& need) { return release_for(need); }},
      {"synchronise pending frees", pending, [this](Need&) { return poll_pending(true); }},
      {"borrow from the other arena",
       locked([this](Need&) { return arenas_[0].free_bytes() + arenas_[1].free_bytes(); }),
       [this](Need& need) { return borrow(need); }},
      {"wait for other threads",
       locked([this](Need& need) { return device_calls_ + (device_calls_ended_ - need.device_calls_seen); }),
       [this](Need&) { return wait_for_other_threads(); }, false},
  };
  std::vector<std::shared_ptr<ReclaimClient>> clients;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : clients_) {
      if (auto client = known.lock()) clients.push_back(std::move(client));
    }
  }
  std::ranges::stable_sort(clients, {}, [](const auto& client) { return client->price_per_byte(); });
  for (const auto& client : clients) {
    // Asked twice: for what is needed, then, if that did not make one run, for all it has.
    all.push_back({client->name(), [client](Need&) { return client->estimate(); },
                   [client](Need& need) { return client->reclaim(need.size); }});
    all.push_back({client->name() + ", all of it", [client](Need&) { return client->estimate(); },
                   [client](Need&) { return client->reclaim(SIZE_MAX); }});
  }
  return all;
}

std::size_t Pool::searched(const Need& need) const {
  return need.size + (need.alignment > granule_ ? need.alignment - granule_ : 0);
}

std::size_t Pool::pending_bytes() const {
  std::size_t bytes = 0;
  for (const Pending& pending : pending_) bytes += pending.block->size;
  return bytes;
}

std::size_t Pool::other_streams_bytes(const Need& need) const {
  std::size_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.free_bytes() - arena.free_bytes(need.stream.id);
  return bytes;
}

void Pool::end_device_call() {
  --device_calls_;
  ++device_calls_ended_;
  device_calls_done_.notify_all();
}

std::size_t Pool::poll_pending(bool wait) {
  Lock lock(mutex_);
  const std::vector<Pending> mine = std::exchange(pending_, {});
  begin_device_call();
  lock.unlock();
  std::vector<Pending> finished;
  std::vector<Pending> unfinished;
  for (Pending pending : mine) {
    bool done = false;
    try {
      if (pending.event == 0) pending.event = memory_->record_event(pending.stream);
      if (wait) memory_->synchronize(pending.event);
      done = wait || memory_->event_finished(pending.event);
    } catch (const Error&) {
      // It stays pending.
    }
    (done ? finished : unfinished).push_back(pending);
  }
  lock.lock();
  end_device_call();
  std::size_t bytes = 0;
  for (const Pending& pending : finished) {
    bytes += pending.block->size;
    subtract_active(pending.block->size);
    arena_of(reinterpret_cast<void*>(pending.block->address))->put(pending.block);
  }
  pending_.insert(pending_.begin(), unfinished.begin(), unfinished.end());
  return bytes;
}

bool Pool::order_after(Stream stream, const std::vector<Block*>& blocks) {
  std::vector<std::uint64_t> others;
  for (const Block* block : blocks) {
    const bool known = block->stream == stream.id || std::ranges::find(others, block->stream) != others.end();
    if (!known) others.push_back(block->stream);
  }
  std::uint64_t recorded = 0;
  bool ordered = true;
  try {
    for (const std::uint64_t other : others) {
      const EventId event = memory_->record_event(Stream{device_, other});
      ++recorded;
      memory_->stream_wait(stream, event);
      memory_->discard_event(event);
    }
  } catch (const Error&) {
    ordered = false;
  }
  const std::lock_guard lock(mutex_);
  statistics_.events_recorded += recorded;
  for (Block* block : blocks) {
    if (ordered) {
      block->stream = stream.id;
    } else {
      arena_of(reinterpret_cast<void*>(block->address))->put(block);
    }
  }
  return ordered;
}

std::size_t Pool::take_from_other_streams(Need& need) {
  Block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    block = arena_for(need.tag).take_from_other_streams(need.size, need.alignment, need.stream.id);
  }
  if (block == nullptr || !order_after(need.stream, {block})) return 0;
  need.block = block;
  return block->size;
}

std::size_t Pool::take_across_streams(Need& need) {
  std::vector<Block*> run;
  {
    const std::lock_guard lock(mutex_);
    run = arena_for(need.tag).take_across_streams(searched(need));
  }
  if (run.empty() || !order_after(need.stream, run)) return 0;
  const std::lock_guard lock(mutex_);
  Arena& arena = arena_for(need.tag);
  need.block = arena.carve(arena.join(run), need.size, need.alignment);
  return need.block->size;
}

bool Pool::add_window(Lock& lock, Arena& arena, std::size_t bytes) {
  lock.unlock();
  const std::size_t usual = std::min(round_up(memory_->info().total, page_), largest_window);
  const std::size_t size = std::max(round_up(bytes, page_), usual);
  void* address = memory_->reserve(size);
  lock.lock();
  if (address == nullptr) return false;
  arena.add_window(reinterpret_cast<std::uintptr_t>(address), size);
  return true;
}

std::size_t Pool::page_deficit(const Need& need) const {
  const Arena& arena = arenas_[is_long_lived(need.tag.category) ? 1 : 0];
  const Arena::Growth growth = arena.plan_growth(searched(need), need.stream.id, page_);
  return growth.hole != nullptr ? growth.bytes : round_up(searched(need), page_);
}

// Large pages once they round the reserved bytes up by no more than a few percent.
std::size_t Pool::growth_step() const {
  constexpr std::size_t share = 16;
  return std::clamp(std::bit_floor<std::size_t>(statistics_.reserved_bytes.current / share), page_, large_page_);
}

std::size_t Pool::commit(Need& need) {
  Lock lock(mutex_);
  Arena& arena = arena_for(need.tag);
  std::size_t step = growth_step();
  while (true) {
    Arena::Growth growth = arena.plan_growth(searched(need), need.stream.id, step);
    const std::size_t pages = growth.hole != nullptr ? growth.bytes : round_up(searched(need), page_);
    const std::size_t reserved = statistics_.reserved_bytes.current;
    need.device_calls_seen = device_calls_ended_;
    if (reserved > budget_ || pages > budget_ - reserved) {
      if (std::exchange(step, page_) == page_) return 0;
      continue;
    }
    if (growth.hole == nullptr) {
      if (!add_window(lock, arena, searched(need))) return 0;
      continue;
    }
    Block* block = arena.begin_growth(growth, need.stream.id);
    statistics_.reserved_bytes.add(pages);
    begin_device_call();
    lock.unlock();
    const bool committed = memory_->commit(reinterpret_cast<void*>(block->address), pages);
    lock.lock();
    end_device_call();
    if (!committed) {
      need.device_full = true;
      statistics_.reserved_bytes.subtract(pages);
      arena.uncommit(block);
      if (std::exchange(step, page_) == page_) return 0;
      continue;
    }
    need.device_full = false;
    ++statistics_.num_device_alloc;
    forbid_access(device_, reinterpret_cast<void*>(block->address), pages);
    block->epoch = tick_;
    arena.put(block);
    need.block = arena.take(need.size, need.alignment, need.stream.id);
    if (need.block != nullptr) return pages;
    // Another thread took the neighbours of the new pages meanwhile: grow again.
  }
}

// Waits until the device has done what is queued on `streams`; false if the device cannot say.
bool Pool::quiet(Lock& lock, const std::vector<Block*>& blocks) {
  std::vector<std::uint64_t> streams;
  for (const Block* block : blocks) {
    if (std::ranges::find(streams, block->stream) == streams.end()) streams.push_back(block->stream);
  }
  begin_device_call();
  lock.unlock();
  std::uint64_t recorded = 0;
  bool done = true;
  try {
    for (const std::uint64_t stream : streams) {
      const EventId event = memory_->record_event(Stream{device_, stream});
      ++recorded;
      memory_->synchronize(event);
    }
  } catch (const Error&) {
    done = false;
  }
  lock.lock();
  end_device_call();
  statistics_.events_recorded += recorded;
  return done;
}

bool Pool::join_mixed_pages(Lock& lock) {
  for (Arena& arena : arenas_) {
    const std::vector<Block*> run = arena.take_mixed_pages();
    if (run.empty()) continue;
    if (quiet(lock, run)) {
      arena.put(arena.join(run));
      return true;
    }
    for (Block* block : run) arena.put(block);
    return false;
  }
  return false;
}

std::size_t Pool::release(Lock& lock, std::size_t bytes) {
  std::size_t released = 0;
  while (released < bytes) {
    Arena* arena = nullptr;
    Block* oldest = nullptr;
    for (Arena& candidate : arenas_) {
      Block* block = candidate.least_recently_used();
      if (block != nullptr && (oldest == nullptr || block->epoch < oldest->epoch)) {
        oldest = block;
        arena = &candidate;
      }
    }
    if (oldest == nullptr) {
      if (join_mixed_pages(lock)) continue;
      break;
    }
    Block* pages = arena->take_pages(oldest, bytes - released);
    if (!quiet(lock, {pages})) {
      arena->put(pages);
      break;
    }
    begin_device_call();
    lock.unlock();
    memory_->decommit(reinterpret_cast<void*>(pages->address), pages->size);
    lock.lock();
    end_device_call();
    ++statistics_.num_device_free;
    statistics_.reserved_bytes.subtract(pages->size);
    released += pages->size;
    arena->uncommit(pages);
  }
  return released;
}

std::size_t Pool::release_for(Need& need) {
  Lock lock(mutex_);
  std::size_t released = 0;
  // What is released may be the very neighbour that the plan counted on, so the deficit is worked out anew each time.
  while (true) {
    const std::size_t pages = page_deficit(need);
    const std::size_t allowed = budget_ - std::min<std::size_t>(budget_, statistics_.reserved_bytes.current);
    std::size_t missing = pages > allowed ? pages - allowed : 0;
    if (need.device_full && released < pages) missing = std::max(missing, pages - released);
    if (missing == 0) return released;
    const std::size_t step = release(lock, missing);
    if (step == 0) return released;
    released += step;
  }
}

std::size_t Pool::borrow(Need& need) {
  const std::lock_guard lock(mutex_);
  Arena& other = arenas_[is_long_lived(need.tag.category) ? 0 : 1];
  need.block = other.take(need.size, need.alignment, need.stream.id);
  return need.block == nullptr ? 0 : need.block->size;
}

std::size_t Pool::wait_for_other_threads() {
  Lock lock(mutex_);
  const std::uint64_t all_of_them = device_calls_ended_ + device_calls_;
  device_calls_done_.wait(lock, [&] { return device_calls_ended_ >= all_of_them || device_calls_ == 0; });
  return 1;
}

std::size_t Pool::trim(std::size_t bytes) {
  poll_pending(false);
  Lock lock(mutex_);
  return release(lock, bytes);
}

void Pool::set_budget(std::size_t bytes) {
  const std::size_t wanted = bytes != 0 ? bytes : memory_->info().total;
  poll_pending(true);
  Lock lock(mutex_);
  const std::size_t previous = budget_;
  const std::size_t reserved = statistics_.reserved_bytes.current;
  const std::size_t pinned = reserved - arenas_[0].releasable_bytes() - arenas_[1].releasable_bytes();
  if (pinned > wanted) {
    throw ValueError("[set_budget] live memory holds " + format_bytes(pinned) + " of pages on " + to_string(device_) +
                     ", more than the new budget of " + format_bytes(wanted));
  }
  budget_ = wanted;
  while (statistics_.reserved_bytes.current > budget_) {
    if (release(lock, statistics_.reserved_bytes.current - budget_) != 0) continue;
    // Another thread took the cached pages first.
    budget_ = previous;
    throw ValueError("[set_budget] " + to_string(device_) +
                     " could not give back enough cached pages for a budget of " + format_bytes(wanted));
  }
}

std::string Pool::report(const Need& need, std::vector<Yield> yields) {
  OomFacts facts;
  facts.device = device_;
  facts.requested = need.requested;
  facts.rounded = need.size;
  facts.tag = need.tag;
  facts.device_free = memory_->info().free;
  const std::lock_guard lock(mutex_);
  ++statistics_.num_ooms;
  facts.budget = budget_;
  facts.reserved = statistics_.reserved_bytes.current;
  facts.live = statistics_.allocated_bytes.current;
  facts.pending = pending_bytes();
  facts.cached = facts.reserved - statistics_.active_bytes.current;
  facts.missing_pages = page_deficit(need);
  std::map<std::uint32_t, std::size_t> scopes;
  for (const Arena& arena : arenas_) {
    facts.largest_free = std::max(facts.largest_free, arena.largest_free());
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state != BlockState::live) continue;
        facts.live_by_category[static_cast<std::size_t>(block->tag.category)] += block->size;
        if (block->tag.scope != 0) scopes[block->tag.scope] += block->size;
      }
    }
  }
  for (const auto& [scope, bytes] : scopes) facts.live_by_scope.emplace_back(scope_name(scope), bytes);
  facts.yields = std::move(yields);
  return oom_report(facts);
}

}  // namespace poolgrad
