// What threads keep for themselves, seen from the pool.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "allocator/pool/pool.h"

namespace poolgrad {

Pool::Standstill::Standstill(const Pool& pool) : pool_(pool), own_(pool.own_cache()) {
  bool others = false;
  for (ThreadCache* cache : pool_.caches_) {
    if (cache == own_) continue;
    cache->flag.revoke();
    others = true;
  }
  if (others) OwnerFlag::barrier();
  for (ThreadCache* cache : pool_.caches_) {
    if (cache != own_) cache->flag.wait();
    pool_.add_up(cache);
  }
}

Pool::Standstill::~Standstill() {
  for (ThreadCache* cache : pool_.caches_) {
    if (cache != own_) cache->flag.restore();
  }
}

std::unique_ptr<ThreadCache> Pool::make_cache() {
  const std::lock_guard lock(mutex_);
  auto cache = std::make_unique<ThreadCache>(*this, next_cache_);
  cache->ring = trace_.make_ring();
  const std::lock_guard caches_lock(caches_mutex_);
  caches_.push_back(cache.get());
  ++next_cache_;
  return cache;
}

void Pool::retire(ThreadCache& cache) noexcept {
  const std::lock_guard lock(mutex_);
  absorb(cache);
  const std::lock_guard caches_lock(caches_mutex_);
  std::erase(caches_, &cache);
}

void Pool::absorb(ThreadCache& cache) noexcept {
  add_up(&cache);
  drain(cache);
  routine_.disturb();
  retired_hash_ += cache.sequence.hash() - RequestSequence::start;
  trace_.keep(std::move(cache.ring));
}

Pool::HeldStill::HeldStill(Pool& pool)
    : lock(pool.between_device_calls()),
      standstill(pool),
      caches(pool.caches_mutex_),
      trace(pool.trace_.hold_still()),
      memory(*pool.memory_) {}

Pool::Lock Pool::between_device_calls() {
  Lock lock(mutex_);
  mutex_.wait(device_calls_done_, [&] { return device_calls_ == 0; });
  return lock;
}

void Pool::hold_still() { held_still_.emplace(*this); }

void Pool::go_on(bool in_child) noexcept {
  if (in_child) {
    // Threads that waited are gone, and the condition would wait for them when it is destroyed.
    std::construct_at(&device_calls_done_);
    held_still_->caches.unlock();
    held_still_->trace.unlock();
    ThreadCache* const own = own_cache();
    for (ThreadCache* cache : caches_) {
      if (cache == own) continue;
      absorb(*cache);
      delete cache;  // its owner never will
    }
    std::erase_if(caches_, [&](const ThreadCache* cache) { return cache != own; });
    // What others had taken and not yet handed out.
    if (planner_ != nullptr && !planner_->has_slabs()) planner_->drop(false);
    for (Arena& arena : arenas_) {
      for (const auto& window : arena.windows()) {
        for (Block* block = window->first; block != nullptr; block = block->next) {
          if (block->state != BlockState::busy || (planner_ != nullptr && planner_->is_slab(block))) continue;
          stamp(block);
          block = arena.put(block);
        }
      }
    }
  }
  held_still_.reset();
}

void Pool::return_from_cache(Block* block) {
  Arena::clear_live(block);
  stamp(block);
  arena_of(reinterpret_cast<void*>(block->address))->put(block);
}

std::size_t Pool::drain(ThreadCache& cache) {
  std::size_t bytes = 0;
  cache.for_each_magazine([&](Magazine& magazine) {
    bytes += magazine.bytes();
    magazine.drain([this](Block* block) { return_from_cache(block); });
  });
  return bytes;
}

std::size_t Pool::drain_magazines() {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  std::size_t bytes = 0;
  for (ThreadCache* cache : caches_) bytes += drain(*cache);
  return bytes;
}

void Pool::drain_magazines_of(std::uint64_t stream) {
  const std::lock_guard caches_lock(caches_mutex_);
  for (ThreadCache* cache : caches_) {
    Magazine* magazine = cache->find(stream);
    if (magazine == nullptr) continue;
    magazine->drain([this](Block* block) { return_from_cache(block); });
    cache->erase(stream);
  }
}

std::size_t Pool::magazine_bytes() const {
  const std::lock_guard lock(caches_mutex_);
  std::size_t bytes = 0;
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](const Magazine& magazine) { bytes += magazine.bytes(); });
  }
  return bytes;
}

bool Pool::put_into_magazine(ThreadCache* cache, Block* block) {
  if (cache == nullptr || !cache->keeps_blocks || block->size > Magazine::largest_block ||
      is_long_lived(block->tag.category)) {
    return false;
  }
  // A small share of the memory: what magazines hold cannot join its neighbours, which costs room elsewhere.
  constexpr std::size_t share = 256;
  constexpr std::size_t least = std::size_t{16} << 10;
  cache->limit = std::clamp<std::size_t>(statistics_.reserved_bytes.current / share, least, Magazine::most_bytes);
  Magazine* magazine = cache->find(block->stream);
  if (magazine == nullptr) {
    auto* made = new (std::nothrow) Magazine(block->stream, trace_stream(block->stream), ticket(block->stream));
    if (made == nullptr) return false;
    magazine = cache->add(std::unique_ptr<Magazine>(made));
  }
  try {
    Arena::mark_live(block);  // it may have been packed
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (magazine->push(block, cache->limit)) return true;
  magazine->make_room(block, [this](Block* old) { return_from_cache(old); });
  return magazine->push(block, cache->limit);
}

bool Pool::is_observed(ThreadCache* cache) {
  if (cache == nullptr) return false;
  constexpr std::size_t share = 512;
  const bool observed =
      routines_ && caches_.size() == 1 && routine_.attentive(tick_, statistics_.reserved_bytes.current / share);
  if (observed && cache->keeps_blocks && drain(*cache) != 0) routine_.disturb();
  cache->keeps_blocks = magazines_ && !observed;
  return observed;
}

void Pool::observe(ThreadCache& cache, const Routine::Act& act, Stream stream, std::uint64_t before) {
  if (!routine_.observe(act, stream, before, changes())) return;
  routine_.trace_stream = trace_stream(stream.id);
  routine_.ticket = ticket(stream.id);
  cache.routine = &routine_;
  mutex_.follower_ = &cache;
}

void Pool::interrupt_routine() noexcept {
  ThreadCache& cache = *std::exchange(mutex_.follower_, nullptr);
  const bool own = &cache == own_cache();
  if (!own) {
    cache.flag.revoke();
    OwnerFlag::barrier();
    cache.flag.wait();
  }
  cache.routine = nullptr;
  catch_up(cache);
  if (!own) cache.flag.restore();
}

// Whole rounds leave everything as it was but for the counts. The last of them is carried out all the same: blocks are
// as old as they would be, and peaks as high.
void Pool::catch_up(const ThreadCache& cache) noexcept {
  const std::uint64_t answered = routine_.count_answered();
  const std::uint64_t length = routine_.length();
  const std::uint64_t acts = answered < 2 * length ? answered : length + answered % length;
  const std::uint64_t rounds = (answered - acts) / length;
  const auto count_rounds = [&](Gauge& gauge, std::uint64_t amount) {
    gauge.allocated += rounds * amount;
    gauge.freed += rounds * amount;
  };
  const auto count_hits = [&](const Routine::Act& act, std::uint64_t hits) {
    statistics_.requests += hits;
    statistics_.pool_hits += hits;
    statistics_.routine_hits += hits;
    if (tags_) statistics_.category_hits[static_cast<std::size_t>(act.category())] += hits;
  };
  for (std::uint64_t back = rounds != 0 ? length : 0; back > 0; --back) {
    const Routine::Act& act = routine_.answered(back);
    if (act.is_free()) continue;
    count_hits(act, rounds);
    count_rounds(statistics_.allocation, 1);
    count_rounds(statistics_.allocated_bytes, rounded(act.bytes()));
    count_rounds(statistics_.requested_bytes, act.bytes());
    count_rounds(statistics_.active_bytes, rounded(act.bytes()));
    if (tags_) count_rounds(statistics_.category_bytes[static_cast<std::size_t>(act.category())], act.bytes());
  }
  tick_ += rounds * length;

  std::array<std::uint64_t, 2> later{};  // allocations that are still to come, and of scratch, which are numbered apart
  const auto kind = [](const Routine::Act& act) { return act.category() == Category::workspace ? 1u : 0u; };
  for (std::uint64_t back = acts; back > 0; --back) {
    const Routine::Act& act = routine_.answered(back);
    later[kind(act)] += !act.is_free();
  }
  for (std::uint64_t back = acts; back > 0; --back) {
    const Routine::Act& act = routine_.answered(back);
    auto* pointer = reinterpret_cast<void*>(act.address);
    if (act.is_free()) {
      Block* block = live_block(pointer);
      if (block == nullptr) die("lost track of", pointer, "a routine does not repeat itself");
      count_release(block);
      statistics_.active_bytes.subtract(block->size);
      return_from_cache(block);
    } else {
      ++tick_;
      count_hits(act, 1);
      Block* block = arena_for(act.tag()).take(rounded(act.bytes()), act.alignment(), routine_.stream().id);
      if (block == nullptr || block->address != act.address) {
        die("lost track of", pointer, "a routine does not repeat itself");
      }
      hand_out(block, act.bytes(), act.tag(), cache.sequence.last(act.category()) - --later[kind(act)]);
    }
  }
  routine_.caught_up(changes());
}

void Pool::begin_event(StreamEvents& events, std::uint64_t stream) {
  events.push_back(order_.begin_event(stream));
  const std::lock_guard caches_lock(caches_mutex_);
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](Magazine& magazine) {
      if (magazine.stream() == stream) magazine.set_ticket(order_.now(stream));
    });
  }
}

void Pool::subtract_active(std::size_t bytes) { statistics_.active_bytes.subtract(bytes); }

}  // namespace poolgrad
