// A map from size to cached buffers with LRU eviction: the cache of MLX, from its documentation and the rules of its
// source.
//
// * A size is a multiple of a page of 16 KiB. Takes the smallest cached buffer of at least that size whole, if it is
//   smaller than both twice the size and the size plus two pages. Buffers are never split or merged.
// * Before it asks the device, active, cached and requested bytes together are held to 95 % of the memory
//   (`memory_limit`): frees the least recently used buffers until that holds, or the whole cache if the excess is 90 %
//   of it.
// * If the device still refuses, frees the whole cache and tries once more (tinygrad's rule: the limit counts bytes,
//   and the device allocates pages).
// * Caches a freed buffer unless the cache has reached `cache_limit` bytes, if set. The next allocation trims a larger
//   cache to the limit.
//
// All streams share the cache without events: MLX frees a buffer when the commands that use it have completed. Left
// out: its heap for buffers of less than a page, and its handling of other processes' memory.
#include <deque>

#include "allocator/heap/bucket_index.h"
#include "allocator/lab/policies/model_policy.h"

namespace poolgrad {

namespace {

constexpr std::size_t lru_page = 16384;

class SizeMapLru : public ModelPolicy {
 public:
  explicit SizeMapLru(const PolicyContext& context)
      : ModelPolicy(context),
        malloc_(device_),
        memory_limit_(
            static_cast<std::size_t>(context.fraction("memory_limit", 0.95) * static_cast<double>(device_.capacity()))),
        cache_limit_(context.bytes("cache_limit", SIZE_MAX)) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t) override {
    Block* block = find(bytes);
    if (by_size_.bytes() > cache_limit_) give_back(by_size_.bytes() - cache_limit_);
    return block;
  }

  void release(Block* block, std::uint16_t) override {
    retire(block);
    if (by_size_.bytes() >= cache_limit_) return malloc_.free(block);
    by_size_.insert(block);
    ++cached_;
    block->epoch = ++tick_;
    uses_.push_back({block, tick_});
    if (uses_.size() > 2 * cached_ + 64) std::erase_if(uses_, [](const Use& use) { return use.taken(); });
  }

 private:
  struct Use {
    Block* block;
    std::uint64_t tick;
    bool taken() const { return block->epoch != tick; }  // since this use
  };

  Block* find(std::size_t bytes) {
    const std::size_t size = round_up_to(bytes, lru_page);
    Block* block = by_size_.find(size);
    if (block != nullptr && block->size < std::min(2 * size, size + 2 * lru_page)) {
      uncache(block);
      return block;
    }
    const std::size_t wanted = active() + by_size_.bytes() + size;
    if (wanted > memory_limit_) give_back(wanted - memory_limit_);
    block = malloc_.allocate(size);
    if (block == nullptr && by_size_.bytes() != 0) {
      give_back(by_size_.bytes());
      block = malloc_.allocate(size);
    }
    return block;
  }

  void uncache(Block* block) {
    by_size_.remove(block);
    --cached_;
    block->epoch = 0;
  }

  void give_back(std::size_t bytes) {
    const std::size_t cached = by_size_.bytes();
    const std::size_t keep = static_cast<double>(bytes) >= 0.9 * static_cast<double>(cached) ? 0 : cached - bytes;
    while (by_size_.bytes() > keep) {
      const Use oldest = uses_.front();
      uses_.pop_front();
      if (oldest.taken()) continue;
      uncache(oldest.block);
      malloc_.free(oldest.block);
    }
  }

  PackedMalloc malloc_;
  std::size_t memory_limit_;
  std::size_t cache_limit_;
  BucketIndex by_size_{lru_page};
  std::deque<Use> uses_;  // oldest first
  std::size_t cached_ = 0;
  std::uint64_t tick_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_size_map_lru(const PolicyContext& context) {
  return std::make_unique<SizeMapLru>(context);
}

}  // namespace poolgrad
