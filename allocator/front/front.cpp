#include "allocator/front/front.h"

#include <array>
#include <new>
#include <utility>

namespace poolgrad {

Standstill::Standstill(const Front& front) : front_(front), own_(front.ground_.settings.own_cache()) {
  bool others = false;
  for (ThreadCache* cache : front_.caches_) {
    if (cache == own_) continue;
    cache->flag.revoke();
    others = true;
  }
  if (others) OwnerFlag::barrier();
  for (ThreadCache* cache : front_.caches_) {
    if (cache != own_) cache->flag.wait();
    front_.add_up(cache);
  }
}

Standstill::~Standstill() {
  for (ThreadCache* cache : front_.caches_) {
    if (cache != own_) cache->flag.restore();
  }
}

std::unique_ptr<ThreadCache> Front::make_cache(Pool& pool) {
  const PoolLock lock(ground_.mutex);
  auto cache = std::make_unique<ThreadCache>(pool, next_cache_);
  cache->ring = ground_.recorder.make_ring();
  const std::lock_guard caches_lock(caches_mutex_);
  caches_.push_back(cache.get());
  ++next_cache_;
  return cache;
}

void Front::retire(ThreadCache& cache) noexcept {
  const PoolLock lock(ground_.mutex);
  absorb(cache);
  const std::lock_guard caches_lock(caches_mutex_);
  std::erase(caches_, &cache);
}

void Front::absorb(ThreadCache& cache) noexcept {
  add_up(&cache);
  drain(cache);
  routine_.disturb();
  retired_hash_ += cache.sequence.hash() - RequestSequence::start;
  ground_.recorder.keep(std::move(cache.ring));
}

std::vector<ThreadCache*> Front::forget_caches() noexcept {
  const PoolLock lock(ground_.mutex);  // which ends the routine that one of them may follow
  const std::lock_guard caches_lock(caches_mutex_);
  return std::exchange(caches_, {});
}

void Front::keep_only_own() noexcept {
  ThreadCache* const own = ground_.settings.own_cache();
  for (ThreadCache* cache : caches_) {
    if (cache == own) continue;
    absorb(*cache);
    delete cache;  // its owner never will
  }
  std::erase_if(caches_, [&](const ThreadCache* cache) { return cache != own; });
}

void Front::return_from_cache(Block* block) {
  Arena::clear_live(block);
  ledger_.put_back(block);
}

std::size_t Front::drain(ThreadCache& cache) {
  std::size_t bytes = 0;
  cache.for_each_magazine([&](Magazine& magazine) {
    bytes += magazine.bytes();
    magazine.drain([this](Block* block) { return_from_cache(block); });
  });
  return bytes;
}

std::size_t Front::drain_all() {
  const Standstill standstill(*this);
  std::size_t bytes = 0;
  for (ThreadCache* cache : caches_) bytes += drain(*cache);
  return bytes;
}

void Front::drain_stream(std::uint64_t stream) {
  const std::lock_guard caches_lock(caches_mutex_);
  for (ThreadCache* cache : caches_) {
    Magazine* magazine = cache->find(stream);
    if (magazine == nullptr) continue;
    magazine->drain([this](Block* block) { return_from_cache(block); });
    cache->erase(stream);
  }
}

std::size_t Front::magazine_bytes() const {
  const std::lock_guard lock(caches_mutex_);
  std::size_t bytes = 0;
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](const Magazine& magazine) { bytes += magazine.bytes(); });
  }
  return bytes;
}

bool Front::keep(ThreadCache* cache, Block* block) {
  if (cache == nullptr || !cache->keeps_blocks || block->size > Magazine::largest_block ||
      is_long_lived(block->tag.category)) {
    return false;
  }
  Magazine* magazine = cache->find(block->stream);
  if (magazine == nullptr) {
    auto* made = new (std::nothrow)
        Magazine(block->stream, ground_.recorder.stream_index(block->stream), ledger_.now(block->stream).ticket);
    if (made == nullptr) return false;
    magazine = cache->add(std::unique_ptr<Magazine>(made));
  }
  try {
    Arena::mark_live(block);  // it may have been packed
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (magazine->push(block, ground_.magazine_limit)) return true;
  magazine->make_room(block, [this](Block* old) { return_from_cache(old); });
  return magazine->push(block, ground_.magazine_limit);
}

bool Front::observes(ThreadCache* cache) {
  if (cache == nullptr) return false;
  constexpr std::size_t share = 512;
  const bool observed = ground_.settings.routines && caches_.size() == 1 &&
                        routine_.attentive(ground_.accounts.tick, ground_.accounts.reserved_bytes.current / share);
  if (observed && cache->keeps_blocks && drain(*cache) != 0) routine_.disturb();
  cache->keeps_blocks = ground_.settings.magazines && !observed;
  return observed;
}

void Front::observe(ThreadCache& cache, const Routine::Act& act, Stream stream, std::uint64_t before) {
  if (!routine_.observe(act, stream, before, arenas_.changes())) return;
  routine_.trace_stream = ground_.recorder.stream_index(stream.id);
  routine_.ticket = ledger_.now(stream.id).ticket;
  cache.routine = &routine_;
  if (cache.ring == nullptr && ground_.settings.tags && !ground_.settings.decays) cache.answers = &routine_;
  follower_ = &cache;
  ground_.mutex.follow(*this);
}

void Front::interrupt() noexcept {
  ThreadCache& cache = *follower_;
  const bool own = &cache == ground_.settings.own_cache();
  if (!own) {
    cache.flag.revoke();
    OwnerFlag::barrier();
    cache.flag.wait();
  }
  cache.routine = nullptr;
  cache.answers = nullptr;
  catch_up(cache);
  if (!own) cache.flag.restore();
}

// Whole rounds leave everything as it was but for the counts. The last of them is carried out all the same: blocks are
// as old as they would be, and peaks as high.
void Front::catch_up(const ThreadCache& cache) noexcept {
  const PoolSettings& settings = ground_.settings;
  Accounts& accounts = ground_.accounts;
  const std::uint64_t answered = routine_.count_answered();
  const std::uint64_t length = routine_.length();
  const std::uint64_t acts = answered < 2 * length ? answered : length + answered % length;
  const std::uint64_t rounds = (answered - acts) / length;
  const auto count_rounds = [&](Gauge& gauge, std::uint64_t amount) {
    gauge.allocated += rounds * amount;
    gauge.freed += rounds * amount;
  };
  const auto count_hits = [&](const Routine::Act& act, std::uint64_t hits) {
    accounts.requests += hits;
    accounts.pool_hits += hits;
    accounts.routine_hits += hits;
    if (settings.tags) accounts.category_hits[static_cast<std::size_t>(act.category())] += hits;
  };
  for (std::uint64_t back = rounds != 0 ? length : 0; back > 0; --back) {
    const Routine::Act& act = routine_.answered(back);
    if (act.is_free()) continue;
    count_hits(act, rounds);
    count_rounds(accounts.allocation, 1);
    const std::size_t size = settings.rounded(act.bytes, act.alignment);
    count_rounds(accounts.allocated_bytes, size);
    count_rounds(accounts.requested_bytes, act.bytes);
    count_rounds(accounts.active_bytes, size);
    if (settings.tags) count_rounds(accounts.category_bytes[static_cast<std::size_t>(act.category())], act.bytes);
  }
  accounts.tick += rounds * length;

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
      Block* block = arenas_.live(pointer);
      if (block == nullptr) settings.die("lost track of", pointer, "a routine does not repeat itself");
      accounts.given_back(*block);
      accounts.no_longer_active(block->size);
      return_from_cache(block);
    } else {
      ++accounts.tick;
      count_hits(act, 1);
      const std::size_t size = settings.rounded(act.bytes, act.alignment);
      Block* block = arenas_.of(act.tag()).take(size, act.alignment, routine_.stream().id);
      if (block == nullptr || block->address != act.address) {
        settings.die("lost track of", pointer, "a routine does not repeat itself");
      }
      hand_out(block, act.bytes, act.tag(), cache.sequence.last(act.category()) - --later[kind(act)]);
    }
  }
  routine_.caught_up(arenas_.changes());
}

void Front::set_ticket(std::uint64_t stream, std::uint64_t ticket) {
  const std::lock_guard caches_lock(caches_mutex_);
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](Magazine& magazine) {
      if (magazine.stream() == stream) magazine.set_ticket(ticket);
    });
  }
}

std::uint64_t Front::sequence_hash() const {
  // A sum, so it does not matter in which order threads are seen; with one thread, that thread's hash.
  std::uint64_t hash = retired_hash_ + (sequence_.hash() - RequestSequence::start);
  for (const ThreadCache* cache : caches_) hash += cache->sequence.hash() - RequestSequence::start;
  return hash;
}

void Front::reset_sequence_hash() {
  retired_hash_ = RequestSequence::start;
  sequence_.reset_hash();
  for (ThreadCache* cache : caches_) cache->sequence.reset_hash();
}

void Front::start_recording() {
  Recorder& recorder = ground_.recorder;
  for (ThreadCache* cache : caches_) {
    cache->ring = recorder.make_ring();
    cache->for_each_magazine(
        [&](Magazine& magazine) { magazine.set_trace_stream(recorder.stream_index(magazine.stream())); });
  }
  routine_.trace_stream = recorder.stream_index(routine_.stream().id);
}

void Front::stop_recording() {
  for (ThreadCache* cache : caches_) ground_.recorder.keep(std::move(cache->ring));
}

std::vector<const TraceRing*> Front::rings() const {
  std::vector<const TraceRing*> rings;
  for (const ThreadCache* cache : caches_) {
    if (cache->ring != nullptr) rings.push_back(cache->ring.get());
  }
  return rings;
}

std::size_t Front::bookkeeping_bytes() const {
  std::size_t bytes = routine_.bookkeeping_bytes();
  for (const ThreadCache* cache : caches_) {
    bytes += sizeof(ThreadCache);
    cache->for_each_magazine([&](const Magazine&) { bytes += sizeof(Magazine); });
  }
  return bytes;
}

void Front::tidy() noexcept {
  routine_.forget();
  const std::lock_guard caches_lock(caches_mutex_);
  for (ThreadCache* cache : caches_) cache->erase_empty();
}

void Front::restart() {
  reset_sequence_hash();
  routine_.restart();
}

}  // namespace poolgrad
