// Size and stream rules of PyTorch's allocators and of allocators built on them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/lab/policies/chunk_heap.h"
#include "allocator/lab/policies/model_policy.h"
#include "allocator/lab/replay/model_device.h"

namespace poolgrad::pytorch {

inline constexpr std::size_t block_granule = 512;
inline constexpr std::size_t largest_small = std::size_t{1} << 20;   // the largest small request
inline constexpr std::size_t small_segment = std::size_t{2} << 20;   // of small blocks
inline constexpr std::size_t large_segment = std::size_t{20} << 20;  // of requests below large_request
inline constexpr std::size_t large_request = std::size_t{10} << 20;  // from here on, a request has its own segment ...
inline constexpr std::size_t large_segment_granule = std::size_t{2} << 20;  // ... rounded up to this

/// Options of PYTORCH_CUDA_ALLOC_CONF with their defaults.
struct Options {
  /// Blocks of at least `max_split` bytes are not split: they serve only requests of at least that size, and only those
  /// they exceed by less than `max_rest`.
  std::size_t max_split = SIZE_MAX;
  std::size_t max_rest = std::size_t{20} << 20;
  /// Number of rounding steps between powers of two, itself a power of two; 0 and 1: no steps.
  std::size_t divisions = 0;
  /// Segment size of requests below large_request.
  std::size_t large_segment = pytorch::large_segment;
  /// Above this many reserved bytes, old cached segments are freed before a new one is allocated.
  std::size_t garbage_threshold = SIZE_MAX;

  static Options of(const PolicyContext& context) {
    Options options;
    options.max_split = context.bytes("max_split", options.max_split);
    options.max_rest = context.bytes("max_non_split_rounding", options.max_rest);
    options.divisions = context.count("roundup_power2_divisions", options.divisions);
    if (options.divisions != 0 && !(std::has_single_bit(options.divisions) && options.divisions <= most_divisions)) {
      context.refuse("roundup_power2_divisions", "a power of two up to " + std::to_string(most_divisions));
    }
    options.large_segment = context.bytes("large_segment", options.large_segment, large_segment_granule);
    if (options.large_segment == 0) context.refuse("large_segment", "at least 2 MiB");
    const double threshold = context.fraction("garbage_collection_threshold", 0);
    if (threshold > 0) {
      options.garbage_threshold = static_cast<std::size_t>(threshold * static_cast<double>(context.capacity));
    }
    return options;
  }

  static constexpr std::size_t most_divisions = std::size_t{1} << 20;

  std::size_t rounded(std::size_t bytes) const {
    if (divisions <= 1 || bytes <= block_granule * divisions) return round_up_to(bytes, block_granule);
    return round_up_to(bytes, std::bit_floor(bytes) / divisions);
  }
  std::size_t segment_size(std::size_t size) const {
    if (size <= largest_small) return small_segment;
    return size < large_request ? large_segment : round_up_to(size, large_segment_granule);
  }
};

/// The free list of blocks like this one.
constexpr std::uint64_t list_of(std::uint16_t stream, std::size_t size) {
  return 2 * std::uint64_t{stream} + (size > largest_small ? 1 : 0);
}

inline std::uint16_t stream_of(const Block* block) { return static_cast<std::uint16_t>(block->stream / 2); }

/// Segments from cudaMalloc, divided into blocks.
class Segments {
 public:
  explicit Segments(ModelDevice& device, const Options& options = {}) : device_(device), options_(options) {}

  /// Returns the best fit of the cache, or of a new segment; nullptr if the device refuses.
  Block* allocate(std::size_t bytes, std::uint16_t stream) {
    const std::size_t size = options_.rounded(bytes);
    if (size > largest_small) ++searches_;
    Block* block = heap_.find(list_of(stream, size), size);
    if (block == nullptr ||
        (size < options_.max_split ? block->size >= options_.max_split : block->size - size >= options_.max_rest)) {
      collect_garbage();
      return allocate_segment(bytes, stream);
    }
    heap_.take(block);
    return cut(block, size);
  }

  Block* allocate_segment(std::size_t bytes, std::uint16_t stream) {
    const std::size_t size = options_.rounded(bytes);
    const std::size_t segment = options_.segment_size(size);
    const std::uintptr_t address = device_.allocate(segment);
    return address == 0 ? nullptr : cut(heap_.add(address, segment, list_of(stream, size)), size);
  }

  void put(Block* block) { heap_.put(block)->epoch = searches_; }

  /// With a split limit, frees the smallest unsplit cached block of at least `bytes`, or else the largest ones until
  /// their sum suffices. Returns false if the sum is too small, and for small requests, which have no unsplit blocks.
  bool free_oversize(std::size_t bytes, std::uint16_t stream) {
    const std::size_t size = options_.rounded(bytes);
    if (options_.max_split == SIZE_MAX || size <= largest_small) return false;
    const std::size_t wanted = std::max(size, options_.max_split);
    std::vector<Block*> whole = heap_.whole_segments(list_of(stream, wanted));
    std::erase_if(whole, [&](const Block* block) { return block->size < options_.max_split; });
    std::ranges::sort(whole, std::greater{}, &Block::size);
    const auto enough = std::ranges::partition_point(whole, [&](const Block* block) { return block->size >= wanted; });
    if (enough != whole.begin()) {
      free(*std::prev(enough));
      return true;
    }
    std::size_t freed = 0;
    for (Block* block : whole) {
      if (freed >= wanted) break;
      freed += block->size;
      free(block);
    }
    return freed >= wanted;
  }

  /// Frees all segments without a live byte.
  void free_cached() {
    for (std::uint64_t list = 0; list < heap_.lists(); ++list)
      for (Block* block : heap_.whole_segments(list)) free(block);
  }

 private:
  Block* cut(Block* block, std::size_t size) {
    const std::size_t rest = block->size - size;
    if (size <= largest_small ? rest >= block_granule : rest > largest_small && size < options_.max_split) {
      heap_.trim(block, size);
    }
    return block;
  }

  void free(Block* block) {
    device_.free(block->address, block->size);
    heap_.remove(block);
  }

  // Frees large cached segments at least as old as the average, again and again, until the threshold is kept. The age
  // of a cached block is the number of requests for large blocks since its free.
  void collect_garbage() {
    if (device_.reserved() <= options_.garbage_threshold) return;
    std::vector<Block*> cached;
    for (std::uint64_t list = 1; list < heap_.lists(); list += 2)
      std::ranges::copy(heap_.whole_segments(list), std::back_inserter(cached));
    const auto age = [&](const Block* block) { return static_cast<double>(searches_ - block->epoch); };
    while (device_.reserved() > options_.garbage_threshold && !cached.empty()) {
      double ages = 0;
      for (const Block* block : cached) ages += age(block);
      const double average = ages / static_cast<double>(cached.size());
      std::erase_if(cached, [&](Block* block) {
        if (age(block) < average) return false;
        free(block);
        return true;
      });
    }
  }

  ModelDevice& device_;
  const Options options_;
  std::uint64_t searches_ = 0;  // requests for large blocks so far; a cached block's `epoch` is the count at its free
  ChunkHeap heap_{block_granule};
};

/// record_stream: a block used by other streams is free once an event recorded on each of them at its free has
/// finished. `requested` of a block heads the list of these streams, `epoch` counts the pending events.
class RecordingPolicy : public ModelPolicy {
 protected:
  explicit RecordingPolicy(const PolicyContext& context) : ModelPolicy(context), waiting_(streams()) {}

  /// Caches a block that is no longer in use.
  virtual void put(Block* block) = 0;
  /// The block's own stream, which needs no event.
  virtual std::uint16_t own_stream(const Block* block) const { return stream_of(block); }

  void share(Block* block, std::uint16_t stream) override {
    if (own_stream(block) == stream) return;
    for (std::size_t at = block->requested; at != 0; at = uses_[at - 1].next) {
      if (uses_[at - 1].stream == stream) return;
    }
    if (spare_ == 0) {
      uses_.push_back({});
      spare_ = uses_.size();
    }
    const std::size_t at = spare_;
    spare_ = uses_[at - 1].next;
    uses_[at - 1] = {block->requested, stream};
    block->requested = at;
  }

  void release(Block* block, std::uint16_t stream) override {
    share(block, stream);
    block->epoch = 0;
    while (block->requested != 0) {
      const std::size_t at = block->requested;
      const std::uint16_t other = uses_[at - 1].stream;
      waiting_[other].push_back({device_.record(other), block});
      ++pending_;
      ++block->epoch;
      block->requested = uses_[at - 1].next;
      uses_[at - 1].next = spare_;
      spare_ = at;
    }
    if (block->epoch == 0) give_back(block);
  }

  /// Polls the oldest events of each stream.
  void poll() {
    if (pending_ == 0) return;
    for (auto& queue : waiting_) {
      while (!queue.empty() && device_.finished(queue.front().event)) finish(queue);
    }
  }

  /// Waits for all events.
  void synchronize() {
    for (auto& queue : waiting_) {
      while (!queue.empty()) {
        device_.synchronize(queue.front().event);
        finish(queue);
      }
    }
  }

 private:
  struct Use {
    std::size_t next = 0;  // index + 1
    std::uint16_t stream = 0;
  };
  struct Waiting {
    std::uint64_t event;
    Block* block;
  };

  void finish(std::deque<Waiting>& queue) {
    Block* block = queue.front().block;
    queue.pop_front();
    --pending_;
    if (--block->epoch == 0) give_back(block);
  }
  void give_back(Block* block) {
    retire(block);
    put(block);
  }

  std::vector<Use> uses_;
  std::size_t spare_ = 0;                     // index + 1
  std::vector<std::deque<Waiting>> waiting_;  // by stream
  std::size_t pending_ = 0;
};

}  // namespace poolgrad::pytorch
