// A cache that evicts the least recently used values first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory_resource>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "allocator/base/fork.h"

namespace poolgrad {

struct LruStatistics {
  std::int64_t hits = 0, misses = 0, entries = 0, bytes = 0, byte_limit = 0;
};

/// Limited by a number of entries and of bytes. A value is cheap to copy, can be compared with its key, and reports its
/// size as bytes(). Thread-safe. A child of fork() finds the cache consistent.
template <class Value>
class Lru {
 public:
  Lru(std::size_t most_bytes, std::size_t most_entries,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : most_bytes_(most_bytes), most_entries_(most_entries), values_(memory), by_hash_(memory) {}

  /// Returns the value with this hash for which same(value) is true, or else caches and returns make(). Calls make()
  /// without a lock: threads that miss at once all call it and share the first result.
  template <class Same, class Make>
  Value get(std::uint64_t hash, const Same& same, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const Value* found = find(hash, same)) return ++hits_, *found;
      ++misses_;
    }
    Value made = make();
    const std::lock_guard lock(mutex_);
    if (const Value* found = find(hash, same)) return *found;
    add(hash, made);
    return made;
  }
  /// The same, but one thread calls make() and the others wait for its result.
  template <class Same, class Make>
  Value get_once(std::uint64_t hash, const Same& same, const Make& make) {
    const std::lock_guard lock(mutex_);
    if (const Value* found = find(hash, same)) return ++hits_, *found;
    ++misses_;
    Value made = make();
    add(hash, made);
    return made;
  }

  /// Evicts at once down to the new limit.
  void set_byte_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    most_bytes_ = bytes;
    evict();
  }
  /// Removes all values; keeps the counts of hits and misses.
  void clear() {
    const std::lock_guard lock(mutex_);
    by_hash_.clear();
    values_.clear();
    bytes_ = 0;
  }
  LruStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return {hits_, misses_, static_cast<std::int64_t>(values_.size()), static_cast<std::int64_t>(bytes_),
            static_cast<std::int64_t>(most_bytes_)};
  }

 private:
  using Values = std::pmr::list<std::pair<std::uint64_t, Value>>;

  template <class Same>
  const Value* find(std::uint64_t hash, const Same& same) {
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      if (!same(std::as_const(at->second->second))) continue;
      values_.splice(values_.begin(), values_, at->second);
      return &at->second->second;
    }
    return nullptr;
  }
  void add(std::uint64_t hash, const Value& value) {
    Values one(values_.get_allocator());
    one.emplace_front(hash, value);
    by_hash_.emplace(hash, one.begin());
    values_.splice(values_.begin(), one);
    bytes_ += value.bytes();
    evict();
  }
  void evict() {
    while (bytes_ > most_bytes_ || values_.size() > most_entries_) {
      const auto last = std::prev(values_.end());
      auto at = by_hash_.equal_range(last->first).first;
      while (at->second != last) ++at;
      by_hash_.erase(at);
      bytes_ -= last->second.bytes();
      values_.pop_back();
    }
  }

  std::size_t most_bytes_, most_entries_;
  mutable ForkMutex mutex_;
  Values values_;  // most recently used first
  std::pmr::unordered_multimap<std::uint64_t, typename Values::iterator> by_hash_;
  std::size_t bytes_ = 0;
  std::int64_t hits_ = 0, misses_ = 0;
};

}  // namespace poolgrad
