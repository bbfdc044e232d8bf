#include "attention/pattern_cache.h"

#include <utility>

namespace poolgrad::attention {

PatternCache& PatternCache::global() {
  static PatternCache cache(std::int64_t{64} << 20);
  return cache;
}

std::shared_ptr<const BlockLists> PatternCache::get(const Key& key, const std::function<BlockLists()>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      ++hits_;
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->lists;
    }
    ++misses_;
  }
  auto lists = std::make_shared<const BlockLists>(make());
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) return found->second->lists;
  const std::int64_t bytes = lists->bytes();
  if (bytes > byte_limit_) return lists;
  entries_.push_front({key, lists, bytes});
  by_key_.emplace(key, entries_.begin());
  bytes_ += bytes;
  evict_beyond_limit();
  return lists;
}

void PatternCache::evict_beyond_limit() {
  while (bytes_ > byte_limit_) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
    ++evictions_;
  }
}

void PatternCache::set_byte_limit(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  byte_limit_ = bytes;
  evict_beyond_limit();
}

void PatternCache::clear() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
  bytes_ = 0;
}

PatternCache::Statistics PatternCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return {hits_, misses_, evictions_, static_cast<std::int64_t>(entries_.size()), bytes_, byte_limit_};
}

}  // namespace poolgrad::attention
