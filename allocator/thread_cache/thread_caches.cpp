#include "allocator/thread_cache/thread_caches.h"

#include <new>
#include <utility>

namespace poolgrad {

StopTheWorld::StopTheWorld(const ThreadCaches& caches) : caches_(caches), own_(caches.context_.settings.own_cache()) {
  bool others = false;
  for (ThreadCache* cache : caches_.caches_) {
    if (cache == own_) continue;
    cache->flag.revoke();
    others = true;
  }
  if (others) OwnerFlag::barrier();
  for (ThreadCache* cache : caches_.caches_) {
    if (cache != own_) cache->flag.wait();
    caches_.add_up(cache);
  }
}

StopTheWorld::~StopTheWorld() {
  for (ThreadCache* cache : caches_.caches_) {
    if (cache != own_) cache->flag.restore();
  }
}

std::unique_ptr<ThreadCache> ThreadCaches::make_cache(Pool& pool) {
  const PoolLock lock(context_.mutex);
  auto cache = std::make_unique<ThreadCache>(pool, next_cache_);
  cache->ring = context_.recorder.make_ring();
  const std::lock_guard caches_lock(caches_mutex_);
  caches_.push_back(cache.get());
  ++next_cache_;
  return cache;
}

void ThreadCaches::retire(ThreadCache& cache) noexcept {
  const PoolLock lock(context_.mutex);
  absorb(cache);
  const std::lock_guard caches_lock(caches_mutex_);
  std::erase(caches_, &cache);
}

void ThreadCaches::absorb(ThreadCache& cache) noexcept {
  add_up(&cache);
  drain_magazines(cache);
  retired_hash_ += cache.sequence.hash() - RequestSequence::start;
  context_.recorder.keep(std::move(cache.ring));
}

std::vector<ThreadCache*> ThreadCaches::forget_caches() noexcept {
  const PoolLock lock(context_.mutex);
  const std::lock_guard caches_lock(caches_mutex_);
  return std::exchange(caches_, {});
}

void ThreadCaches::keep_only_own() noexcept {
  ThreadCache* const own = context_.settings.own_cache();
  for (ThreadCache* cache : caches_) {
    if (cache == own) continue;
    absorb(*cache);
    delete cache;  // its owner never will
  }
  std::erase_if(caches_, [&](const ThreadCache* cache) { return cache != own; });
}

void ThreadCaches::return_from_cache(Block* block) {
  Arena::clear_live(block);
  tracker_.put_back(block);
}

std::size_t ThreadCaches::drain_magazines(ThreadCache& cache) {
  std::size_t bytes = 0;
  cache.for_each_magazine([&](Magazine& magazine) {
    bytes += magazine.bytes();
    magazine.drain([this](Block* block) { return_from_cache(block); });
  });
  return bytes;
}

std::size_t ThreadCaches::drain(ThreadCache* cache) {
  const std::size_t bytes = depot_.bytes();
  depot_.drain([this](Block* block) { return_from_cache(block); });
  return bytes + (cache != nullptr ? drain_magazines(*cache) : 0);
}

std::size_t ThreadCaches::drain_all() {
  const StopTheWorld stopped(*this);
  std::size_t bytes = drain(nullptr);
  for (ThreadCache* cache : caches_) bytes += drain_magazines(*cache);
  return bytes;
}

void ThreadCaches::begin_phase() {
  drain_all();
  const bool alone = caches_.size() <= 1;
  context_.use_magazines(!alone);
  for (Arena& arena : arenas_) arena.ignore_growth(alone && context_.memory->divisible());
}

void ThreadCaches::drain_stream(std::uint64_t stream) {
  depot_.drain_stream(stream, [this](Block* block) { return_from_cache(block); });
  const std::lock_guard caches_lock(caches_mutex_);
  for (ThreadCache* cache : caches_) {
    Magazine* magazine = cache->find(stream);
    if (magazine == nullptr) continue;
    magazine->drain([this](Block* block) { return_from_cache(block); });
    cache->erase(stream);
  }
}

std::size_t ThreadCaches::magazine_bytes() const {
  const std::lock_guard lock(caches_mutex_);
  std::size_t bytes = depot_.bytes();
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](const Magazine& magazine) { bytes += magazine.bytes(); });
  }
  return bytes;
}

Magazine* ThreadCaches::magazine_of(ThreadCache& cache, std::uint64_t stream) noexcept {
  if (Magazine* known = cache.find(stream)) return known;
  auto* made = new (std::nothrow) Magazine(stream, context_.recorder.stream_index(stream), tracker_.now(stream).ticket);
  return made == nullptr ? nullptr : cache.add(std::unique_ptr<Magazine>(made));
}

Block* ThreadCaches::take(ThreadCache* cache, std::size_t size, std::size_t alignment, std::uint64_t stream) {
  Chain chain = depot_.take(size, stream);
  if (chain.top == nullptr) return nullptr;
  Block* block = nullptr;
  if ((chain.top->address & (alignment - 1)) == 0) {
    block = chain.pop();
    Arena::clear_live(block);
    block->state = BlockState::busy;
  }
  Magazine* magazine = cache == nullptr ? nullptr : magazine_of(*cache, stream);
  if (chain.top != nullptr && (magazine == nullptr || !magazine->take_over(chain, context_.magazine_limit)))
    depot_.give(chain, context_.magazine_limit, [this](Block* rest) { return_from_cache(rest); });
  return block;
}

bool ThreadCaches::keep(ThreadCache* cache, Block* block) {
  const std::size_t limit = context_.magazine_limit;
  if (cache == nullptr || block->size > Magazine::largest_block(limit) || is_long_lived(block->tag.category)) {
    return false;
  }
  Magazine* magazine = magazine_of(*cache, block->stream);
  if (magazine == nullptr) return false;
  if (magazine->push(block, limit)) return true;
  depot_.give(magazine->make_room(block), limit, [this](Block* old) { return_from_cache(old); });
  return magazine->push(block, limit);
}

void ThreadCaches::set_ticket(std::uint64_t stream, std::uint64_t ticket) {
  const std::lock_guard caches_lock(caches_mutex_);
  for (const ThreadCache* cache : caches_) {
    cache->for_each_magazine([&](Magazine& magazine) {
      if (magazine.stream() == stream) magazine.set_ticket(ticket);
    });
  }
}

std::uint64_t ThreadCaches::sequence_hash() const {
  // A sum, so the order of threads does not matter; with one thread, that thread's hash.
  std::uint64_t hash = retired_hash_ + (sequence_.hash() - RequestSequence::start);
  for (const ThreadCache* cache : caches_) hash += cache->sequence.hash() - RequestSequence::start;
  return hash;
}

void ThreadCaches::reset_sequence_hash() {
  retired_hash_ = RequestSequence::start;
  sequence_.reset_hash();
  for (ThreadCache* cache : caches_) cache->sequence.reset_hash();
}

void ThreadCaches::start_recording() {
  Recorder& recorder = context_.recorder;
  for (ThreadCache* cache : caches_) {
    cache->ring = recorder.make_ring();
    cache->for_each_magazine(
        [&](Magazine& magazine) { magazine.set_trace_stream(recorder.stream_index(magazine.stream())); });
  }
}

void ThreadCaches::stop_recording() {
  for (ThreadCache* cache : caches_) context_.recorder.keep(std::move(cache->ring));
}

std::vector<const TraceRing*> ThreadCaches::rings() const {
  std::vector<const TraceRing*> rings;
  for (const ThreadCache* cache : caches_) {
    if (cache->ring != nullptr) rings.push_back(cache->ring.get());
  }
  return rings;
}

std::size_t ThreadCaches::bookkeeping_bytes() const {
  std::size_t bytes = 0;
  for (const ThreadCache* cache : caches_) {
    bytes += sizeof(ThreadCache);
    cache->for_each_magazine([&](const Magazine&) { bytes += sizeof(Magazine); });
  }
  return bytes;
}

void ThreadCaches::tidy() noexcept {
  const std::lock_guard caches_lock(caches_mutex_);
  for (ThreadCache* cache : caches_) cache->erase_empty();
}

}  // namespace poolgrad
