#include "allocator/thread_cache/thread_cache.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "allocator/base/fork.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

constinit thread_local ThreadState thread_state{};

namespace {

// The existing pools by place, and the mutex that guards the links between threads and pools, since either may end
// first. Never destroyed, like the pools of the registry.
struct Pools {
  std::mutex mutex;
  std::vector<Pool*> pools;
  std::uint64_t own_streams = 0;                  // ids ever assigned to threads' own streams
  std::vector<std::uint64_t> unused_own_streams;  // of threads that have exited
};

Pools& all_pools() {
  static auto* pools = new Pools;
  return *pools;
}

std::mutex& ties() { return all_pools().mutex; }

}  // namespace

ThreadCache::~ThreadCache() {
  for (Magazine* magazine = newest_; magazine != nullptr;) delete std::exchange(magazine, magazine->older);
}

Magazine* ThreadCache::find_other(std::uint64_t stream) noexcept {
  for (Magazine* magazine = newest_; magazine != nullptr; magazine = magazine->older) {
    if (magazine->stream() == stream) return recent_[slot(stream)] = magazine;
  }
  return nullptr;
}

Magazine* ThreadCache::add(std::unique_ptr<Magazine> magazine) noexcept {
  magazine->older = newest_;
  recent_[slot(magazine->stream())] = magazine.get();
  newest_.store(magazine.get(), std::memory_order_release);
  return magazine.release();
}

void ThreadCache::erase(std::uint64_t stream) noexcept {
  Magazine* newer = nullptr;
  Magazine* magazine = newest_;
  while (magazine != nullptr && magazine->stream() != stream) magazine = (newer = magazine)->older;
  if (magazine == nullptr) return;
  if (newer == nullptr) {
    newest_ = magazine->older;
  } else {
    newer->older = magazine->older;
  }
  if (recent_[slot(stream)] == magazine) recent_[slot(stream)] = nullptr;
  delete magazine;
}

void ThreadCache::erase_empty() noexcept {
  for (Magazine* magazine = newest_; magazine != nullptr;) {
    Magazine* older = magazine->older;
    if (magazine->bytes() == 0) erase(magazine->stream());
    magazine = older;
  }
}

ThreadCacheTable& ThreadCacheTable::mine() {
  thread_local ThreadCacheTable caches;
  return caches;
}

std::uint64_t ThreadCacheTable::name_own_stream() noexcept {
  const bool ending = thread_state.ended;  // an ending thread could not release the id
  if (!ending) mine();
  const std::lock_guard lock(ties());
  auto& unused = all_pools().unused_own_streams;
  if (ending || unused.empty()) {
    thread_state.own_stream = own_stream_bit | ++all_pools().own_streams;
  } else {
    thread_state.own_stream = unused.back();
    unused.pop_back();
  }
  return thread_state.own_stream;
}

// Requires the links' mutex, so that no pool ends meanwhile. Releases the id first: an event of the legacy default
// stream covers the work whether or not the driver still knows the stream's handle.
void ThreadCacheTable::give_up_own_stream() noexcept {
  const std::uint64_t name = std::exchange(thread_state.own_stream, 0);
  if (name == 0) return;
  try {
    for (Pool* pool : all_pools().pools) {
      if (pool != nullptr && pool->settings().device.is_cuda()) pool->stream_destroyed({pool->settings().device, name});
    }
    all_pools().unused_own_streams.push_back(name);
  } catch (...) {
    // The id stays reserved, so the stream's work can still be waited for.
  }
}

ThreadCache* ThreadCacheTable::make_own(Pool& pool) noexcept {
  if (thread_state.ended) return nullptr;
  try {
    ThreadCache* cache = mine().make(pool);
    mine().remember(pool, cache);
    return cache;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void ThreadCacheTable::remember(const Pool& pool, ThreadCache* cache) {
  const std::size_t at_hand = thread_state.caches.size();
  if (pool.settings().place < at_hand) {
    thread_state.caches[pool.settings().place] = {pool.settings().id, cache};
    return;
  }
  if (more_known_.size() <= pool.settings().place - at_hand) more_known_.resize(pool.settings().place - at_hand + 1);
  more_known_[pool.settings().place - at_hand] = {pool.settings().id, cache};
  thread_state.more_caches = more_known_.data();
  thread_state.more = more_known_.size();
}

ThreadCache* ThreadCacheTable::make(Pool& pool) {
  const std::lock_guard lock(ties());
  for (const auto& cache : caches_) {
    if (cache->pool_ == &pool) return cache.get();
  }
  std::erase_if(caches_, [](const auto& cache) { return cache->pool_ == nullptr; });
  caches_.reserve(caches_.size() + 1);
  caches_.push_back(pool.thread_caches().make_cache(pool));
  return caches_.back().get();
}

std::size_t ThreadCacheTable::enter(Pool& pool) {
  hold_pools_still_over_forks();
  const std::lock_guard lock(ties());
  auto& pools = all_pools().pools;
  const auto free = std::ranges::find(pools, nullptr);
  const auto place = static_cast<std::size_t>(free - pools.begin());
  if (free == pools.end()) pools.push_back(nullptr);
  pools[place] = &pool;
  return place;
}

void ThreadCacheTable::forget(Pool& pool) noexcept {
  const std::lock_guard lock(ties());
  for (ThreadCache* cache : pool.thread_caches().forget_caches()) cache->pool_ = nullptr;
  all_pools().pools[pool.settings().place] = nullptr;
}

void ThreadCacheTable::hold_still() {
  ties().lock();
  for (Pool* pool : all_pools().pools) {
    if (pool != nullptr) pool->hold_still();
  }
}

void ThreadCacheTable::go_on(bool in_child) noexcept {
  for (Pool* pool : all_pools().pools) {
    if (pool != nullptr) pool->go_on(in_child);
  }
  ties().unlock();
}

ThreadCacheTable::~ThreadCacheTable() {
  thread_state.ended = true;
  thread_state.caches = {};
  thread_state.more = 0;
  const std::lock_guard lock(ties());
  for (const auto& cache : caches_) {
    if (cache->pool_ != nullptr) cache->pool_->thread_caches().retire(*cache);
  }
  give_up_own_stream();
}

}  // namespace poolgrad
