// What the pool is measured against, in the same run: the usual shape of a framework's caching allocator, reduced to
// its data structures. One mutex, a tree of free blocks ordered by size and address, a hash map from pointers to
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace poolgrad {

class TreeAllocator {
 public:
  TreeAllocator() = default;
  ~TreeAllocator() {
    for (const auto& [pointer, bytes] : live_) std::free(pointer);
    for (const auto& [bytes, pointer] : free_) std::free(pointer);
  }
  TreeAllocator(const TreeAllocator&) = delete;
  TreeAllocator& operator=(const TreeAllocator&) = delete;

  void* allocate(std::size_t bytes) {
    bytes = (bytes + 511) / 512 * 512;
    const std::lock_guard lock(mutex_);
    void* pointer = nullptr;
    if (const auto fit = free_.lower_bound({bytes, nullptr}); fit != free_.end() && fit->first == bytes) {
      pointer = fit->second;
      free_.erase(fit);
    } else {
      pointer = std::aligned_alloc(512, bytes);
    }
    live_.emplace(pointer, bytes);
    return pointer;
  }
  void deallocate(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto block = live_.find(pointer);
    free_.emplace(block->second, pointer);
    live_.erase(block);
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<std::size_t, void*>> free_;
  std::unordered_map<void*, std::size_t> live_;
};

}  // namespace poolgrad
