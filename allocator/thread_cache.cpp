#include "allocator/thread_cache.h"

#include <mutex>
#include <new>
#include <utility>

#include "allocator/pool.h"

namespace poolgrad {

constinit thread_local ThreadState thread_state{};

namespace {

// Guards the ties between threads and pools, for either may end first. Never destroyed, like the pools of the registry.
std::mutex& ties() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

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

ThreadCache* ThreadCaches::of(Pool& pool) noexcept {
  if (ThreadCache* cache = known(pool.id())) return cache;
  if (thread_state.ended) return nullptr;
  thread_local ThreadCaches mine;
  try {
    ThreadCache* cache = mine.make(pool);
    thread_state.cache_of(pool.id()) = {pool.id(), cache};
    return cache;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

ThreadCache* ThreadCaches::make(Pool& pool) {
  const std::lock_guard lock(ties());
  for (const auto& cache : caches_) {
    if (cache->pool_ == &pool) return cache.get();
  }
  std::erase_if(caches_, [](const auto& cache) { return cache->pool_ == nullptr; });
  caches_.reserve(caches_.size() + 1);
  caches_.push_back(pool.make_cache());
  return caches_.back().get();
}

void ThreadCaches::forget(Pool& pool) noexcept {
  const std::lock_guard lock(ties());
  for (ThreadCache* cache : pool.caches()) cache->pool_ = nullptr;
}

ThreadCaches::~ThreadCaches() {
  thread_state.ended = true;
  thread_state.caches = {};
  const std::lock_guard lock(ties());
  for (const auto& cache : caches_) {
    if (cache->pool_ != nullptr) cache->pool_->retire(*cache);
  }
}

}  // namespace poolgrad
