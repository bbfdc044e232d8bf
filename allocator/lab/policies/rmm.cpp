// RMM's memory resources, from their documentation and the rules of their source: pool, arena, binning.
#include <algorithm>
#include <bit>

#include "allocator/lab/policies/model_policy.h"

namespace poolgrad {

namespace {

// pool_memory_resource, which the binning resource also uses.
//
// * A size is a multiple of 256 bytes. Each stream has a list of free blocks. A freed block joins the list of the
//   stream of its free, and merges with neighbors in that list alone. Each free records an event.
// * Takes the best fit of the stream's own list, and splits it if anything is left. Else takes the best fit of another
//   stream's list after waiting for that stream's event; the rest stays with the other stream. Else merges the lists of
//   the other streams into the own list one by one, each after a wait, until a block fits.
// * Else the pool doubles, or grows by the request if that is more. If the device refuses, it tries half of that, and
//   half again, down to the request. With a maximum size (`maximum_size`) it grows by half of the remainder instead, or
//   by the request. It never releases memory.
//
// Here the pool begins empty, unless a program chooses its `initial_size`, and grows by whole pages of 2 MiB. Left out:
// the mutex.
class RmmPool {
 public:
  /// Begins with `initial` bytes, and refuses all requests if the device refuses these; `maximum` 0: no limit. Both are
  /// multiples of ModelDevice::page.
  RmmPool(ModelDevice& device, std::uint16_t streams, std::size_t initial = 0, std::size_t maximum = 0)
      : device_(device), events_(streams), maximum_(maximum) {
    if (initial == 0) return;
    if (const std::uintptr_t address = device_.allocate(initial)) {
      heap_.put(heap_.add(address, initial, 0));
      pool_size_ = initial;
    } else {
      maximum_ = 1;  // refuses all requests
    }
  }

  /// nullptr if the pool cannot grow.
  Block* allocate(std::size_t bytes, std::uint16_t stream) {
    const std::size_t size = round_up_to(bytes, 256);
    Block* block = heap_.take_fit(stream, size);
    if (block == nullptr) block = steal(size, stream);
    if (block == nullptr) block = merge_lists(size, stream);
    if (block == nullptr) block = grow(size, stream);
    if (block != nullptr) heap_.trim(block, size);
    return block;
  }

  /// Frees the block for `stream`, and for others after a wait for its event.
  void deallocate(Block* block, std::uint16_t stream) {
    events_[stream] = device_.record(stream);
    block->stream = stream;
    heap_.put(block);
  }

 private:
  Block* steal(std::size_t size, std::uint16_t stream) {
    for (std::uint16_t other = 0; other < events_.size(); ++other) {
      Block* block = other == stream ? nullptr : heap_.take_fit(other, size);
      if (block == nullptr) continue;
      if (events_[other] != 0) device_.wait(stream, events_[other]);
      return block;
    }
    return nullptr;
  }

  Block* merge_lists(std::size_t size, std::uint16_t stream) {
    for (std::uint16_t other = 0; other < events_.size(); ++other) {
      if (other == stream) continue;
      const std::vector<Block*> blocks = heap_.blocks(other);
      if (blocks.empty()) continue;
      if (events_[other] != 0) device_.wait(stream, events_[other]);
      events_[other] = 0;
      for (Block* block : blocks) heap_.move(block, stream, 0);
      if (Block* block = heap_.take_fit(stream, size)) return block;
    }
    return nullptr;
  }

  Block* grow(std::size_t size, std::uint16_t stream) {
    const std::size_t least = round_up_to(size, ModelDevice::page);
    std::size_t bytes = std::max(least, pool_size_);
    if (maximum_ != 0) {
      const std::size_t remaining = maximum_ - pool_size_;
      if (least > remaining) return nullptr;
      bytes = std::max(least, remaining / 2);
    }
    for (;; bytes = std::max(least, bytes / 2)) {
      bytes = round_up_to(bytes, ModelDevice::page);
      if (const std::uintptr_t address = device_.allocate(bytes)) {
        pool_size_ += bytes;
        return heap_.add(address, bytes, stream);
      }
      if (bytes == least) return nullptr;
    }
  }

  ModelDevice& device_;
  ChunkHeap heap_{256};
  std::vector<std::uint64_t> events_;  // by stream, of its last free; 0 if its list is empty
  std::size_t maximum_;
  std::size_t pool_size_ = 0;
};

class RmmPoolPolicy : public ModelPolicy {
 public:
  explicit RmmPoolPolicy(const PolicyContext& context)
      : ModelPolicy(context), pool_(device_, streams(), initial(context), maximum(context)) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override { return pool_.allocate(bytes, stream); }
  void release(Block* block, std::uint16_t stream) override {
    retire(block);
    pool_.deallocate(block, stream);
  }

 private:
  static std::size_t maximum(const PolicyContext& context) {
    return context.bytes("maximum_size", 0, ModelDevice::page);
  }
  static std::size_t initial(const PolicyContext& context) {
    const std::size_t bytes = context.bytes("initial_size", 0, ModelDevice::page);
    if (maximum(context) != 0 && bytes > maximum(context)) context.refuse("initial_size", "at most the maximum");
    return bytes;
  }

  RmmPool pool_;
};

// arena_memory_resource.
//
// * Takes all memory at the start, as the global arena: a size that the program chooses, here the whole capacity unless
//   `arena_size` is given (RMM's default is half of the free memory). If the device has less, refuses all requests. It
//   never releases memory.
// * A size is a multiple of 256 bytes. Each stream has its own arena that takes superblocks of 1 MiB from the global
//   arena; requests above 1 MiB are blocks of the global arena. Always takes the lowest address that fits and splits
//   off the rest. Free neighbors of the same superblock, or of the global arena, merge at once.
// * A free of a block of the global arena, or of another stream's arena, synchronizes the stream.
// * When the global arena has no fit, the device is synchronized, all superblocks without a live byte return to the
//   global arena, and the allocation is tried once more.
//
// Left out: the optional table of size classes, and arenas of threads.
class RmmArena : public ModelPolicy {
  static constexpr std::size_t granule = 256;
  static constexpr std::size_t superblock = std::size_t{1} << 20;
  static constexpr std::uint64_t global = 0;  // list number; stream s has s + 1

 public:
  explicit RmmArena(const PolicyContext& context) : ModelPolicy(context) {
    const std::size_t all = device_.capacity() / ModelDevice::page * ModelDevice::page;
    const std::size_t bytes = context.bytes("arena_size", all, ModelDevice::page);
    if (bytes == 0) return;
    if (const std::uintptr_t address = device_.allocate(bytes)) heap_.put(heap_.add(address, bytes, global));
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const std::size_t size = round_up_to(bytes, granule);
    Block* block = find(size, stream);
    if (block == nullptr && defragment()) block = find(size, stream);
    if (block != nullptr) heap_.trim(block, size);
    return block;
  }

  void release(Block* block, std::uint16_t stream) override {
    if (block->stream != list_of(stream)) device_.synchronize_stream(stream);
    retire(block);
    heap_.put(block);
  }

 private:
  static std::uint64_t list_of(std::uint16_t stream) { return std::uint64_t{stream} + 1; }

  Block* find(std::size_t size, std::uint16_t stream) {
    if (size > superblock) return heap_.take_fit(global, size);
    if (Block* block = heap_.take_fit(list_of(stream), size)) return block;
    Block* block = heap_.take_fit(global, superblock);
    if (block == nullptr) return nullptr;
    heap_.trim(block, superblock);
    block->stream = list_of(stream);
    block->number = ++superblocks_;
    return block;
  }

  // Returns empty superblocks; false if there are none.
  bool defragment() {
    device_.synchronize_all();
    bool any = false;
    for (std::uint64_t list = global + 1; list < heap_.lists(); ++list) {
      for (Block* block : heap_.blocks(list)) {
        if (block->size != superblock) continue;
        heap_.move(block, global, 0);
        any = true;
      }
    }
    return any;
  }

  FirstFitHeap heap_{granule};
  std::uint64_t superblocks_ = 0;  // given to streams so far; also their Block::number
};

// binning_memory_resource in the setup of RMM's benchmarks.
//
// * Bins of fixed-size blocks of 256 KiB, 512 KiB, 1 MiB, 2 MiB and 4 MiB, or from `smallest_bin` to `largest_bin`. A
//   request goes to the smallest bin that it fits in; a larger one goes to the pool.
// * A bin takes 128 blocks (`blocks`) at a time from the pool and never returns them. Each stream has a list of free
//   blocks, last in, first out; each free records an event. A stream without free blocks takes all those of another
//   stream after waiting for its event, stream by stream; then the bin grows.
//
// Here a bin takes its first blocks at its first use, not at construction. If 128 blocks do not fit, the allocation
// fails, as a fixed-size resource never asks for fewer.
class RmmBinning : public ModelPolicy {
  static constexpr std::size_t most_blocks = std::size_t{1} << 16;
  static constexpr std::uint64_t pool_block = ~std::uint64_t{0};  // Block::number; other blocks have their bin there

 public:
  explicit RmmBinning(const PolicyContext& context)
      : ModelPolicy(context),
        pool_(device_, streams()),
        first_bin_(bin_log(context, "smallest_bin", std::size_t{1} << 18)),
        blocks_per_chunk_(context.count("blocks", 128)) {
    const unsigned last = bin_log(context, "largest_bin", std::max(std::size_t{1} << 22, std::size_t{1} << first_bin_));
    if (last < first_bin_) context.refuse("largest_bin", "at least the smallest");
    if (blocks_per_chunk_ > most_blocks) context.refuse("blocks", "at most " + std::to_string(most_blocks));
    bins_.resize(last - first_bin_ + 1, std::vector<List>(streams()));
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const auto log = static_cast<unsigned>(std::bit_width(bytes - 1));
    const unsigned bin = log < first_bin_ ? 0 : log - first_bin_;
    if (bin >= bins_.size()) {
      Block* block = pool_.allocate(bytes, stream);
      if (block != nullptr) block->number = pool_block;
      return block;
    }
    auto& lists = bins_[bin];
    if (lists[stream].blocks.empty() && !take_others(lists, stream) && !grow(bin, stream)) return nullptr;
    Block* block = lists[stream].blocks.back();
    lists[stream].blocks.pop_back();
    return block;
  }

  void release(Block* block, std::uint16_t stream) override {
    retire(block);
    if (block->number == pool_block) {
      block->number = 0;
      pool_.deallocate(block, stream);
      return;
    }
    List& list = bins_[block->number][stream];
    list.event = device_.record(stream);
    list.blocks.push_back(block);
  }

 private:
  struct List {
    std::vector<Block*> blocks;
    std::uint64_t event = 0;  // of the last free; 0 if none
  };

  // log2 of a bin's block size, 256 bytes to 1 GiB.
  static unsigned bin_log(const PolicyContext& context, std::string_view parameter, std::size_t otherwise) {
    const std::size_t bytes = context.bytes(parameter, otherwise);
    if (!std::has_single_bit(bytes) || bytes < 256 || bytes > std::size_t{1} << 30) {
      context.refuse(parameter, "a power of two from 256 bytes to 1 GiB");
    }
    return static_cast<unsigned>(std::countr_zero(bytes));
  }

  bool take_others(std::vector<List>& lists, std::uint16_t stream) {
    for (List& other : lists) {
      if (other.blocks.empty()) continue;
      if (other.event != 0) device_.wait(stream, other.event);
      lists[stream].blocks.swap(other.blocks);
      return true;
    }
    return false;
  }

  bool grow(unsigned bin, std::uint16_t stream) {
    const std::size_t size = std::size_t{1} << (first_bin_ + bin);
    const Block* chunk = pool_.allocate(blocks_per_chunk_ * size, stream);
    if (chunk == nullptr) return false;
    for (std::size_t i = blocks_per_chunk_; i-- > 0;) {
      Block* block = store_.make();
      block->address = chunk->address + i * size;
      block->size = size;
      block->number = bin;
      bins_[bin][stream].blocks.push_back(block);
    }
    return true;
  }

  RmmPool pool_;
  BlockStore store_;
  unsigned first_bin_;  // log2 of the smallest block size
  std::size_t blocks_per_chunk_;
  std::vector<std::vector<List>> bins_;  // by bin, then by stream
};

}  // namespace

std::unique_ptr<Policy> make_rmm_pool(const PolicyContext& context) { return std::make_unique<RmmPoolPolicy>(context); }

std::unique_ptr<Policy> make_rmm_arena(const PolicyContext& context) { return std::make_unique<RmmArena>(context); }

std::unique_ptr<Policy> make_rmm_binning(const PolicyContext& context) { return std::make_unique<RmmBinning>(context); }

}  // namespace poolgrad
