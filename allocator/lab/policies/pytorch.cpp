// PyTorch's caching allocator, with and without expandable_segments.
#include <algorithm>

#include "allocator/lab/policies/model_policy.h"
#include "allocator/lab/policies/pytorch_rules.h"

namespace poolgrad {

namespace {

// PyTorch's caching allocator with its default settings unless others are given, from its documentation and the rules
// of its source (c10/cuda/CUDACachingAllocator).
//
// * A size is a multiple of 512 bytes. Requests of up to 1 MiB are small. Each stream has its own small and large
//   blocks, and a block stays with its stream for life.
// * Takes the best fit by (size, address). Splits it if the rest is at least 512 bytes (small) or more than 1 MiB
//   (large). Free neighbors merge at once.
// * Without a fit, allocates a segment: 2 MiB for small blocks, 20 MiB below 10 MiB, else the size rounded up to 2 MiB.
// * If the device refuses, waits for all pending frees, frees every unsplit cached segment, and requests the segment
//   once more. It does not search the cache again, so blocks freed by that wait are not considered.
// * record_stream: one event per other stream at the free; each allocation first polls the oldest events. A free on
//   another stream than the block's counts as a use by it.
// * With a largest split size (`max_split`), larger blocks are never split, serve only requests as large, and exceed
//   them by less than 20 MiB. If the device refuses, one or some of the cached ones are freed before all the rest.
// * With `garbage_collection_threshold`, while more than that part of the capacity is reserved, a failed search frees
//   unsplit cached large segments before the device is asked: those at least as old as their average, then again among
//   the rest, without a wait. A block ages with each request for a large block.
// * With `roundup_power2_divisions` d, a size above 512 x d bytes is a multiple of a d-th of the power of two below it.
//
// Left out: divisions that differ by size, private pools, and callbacks before the device is asked.
class PytorchNative : public pytorch::RecordingPolicy {
 public:
  explicit PytorchNative(const PolicyContext& context)
      : RecordingPolicy(context), segments_(device_, options_of(context)) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    poll();
    Block* block = segments_.allocate(bytes, stream);
    if (block == nullptr && segments_.free_oversize(bytes, stream)) block = segments_.allocate_segment(bytes, stream);
    if (block != nullptr) return block;
    synchronize();
    segments_.free_cached();
    return segments_.allocate_segment(bytes, stream);
  }

  void put(Block* block) override { segments_.put(block); }

 private:
  static pytorch::Options options_of(const PolicyContext& context) {
    const pytorch::Options options = pytorch::Options::of(context);
    if (options.large_segment < pytorch::large_request) context.refuse("large_segment", "at least 10 MiB");
    return options;
  }

  pytorch::Segments segments_;
};

// PyTorch's caching allocator with expandable_segments, from its documentation and the rules of its source.
//
// * Sizes, small and large, streams and record_stream are as in PytorchNative.
// * Each stream has one range of addresses for small and one for large blocks, 1.125 times the device's memory. Pages
//   of 2 MiB (small) or 20 MiB (large; `large_segment`), one handle each, are mapped into it on demand.
// * Takes the best fit among mapped free blocks. A block in front of unmapped addresses counts with these: it is kept
//   for growth. A block is split whenever 512 bytes or more are left.
// * Without a fit, maps pages to complete the lowest long enough run of free and unmapped addresses.
// * If the device refuses a page, waits for all pending frees, synchronizes the device, unmaps every page without a
//   live byte, and searches for a run once more.
//
// Left out: as in PytorchNative; and the types of handles, which cost nothing here.
class PytorchExpandable : public pytorch::RecordingPolicy {
 public:
  explicit PytorchExpandable(const PolicyContext& context)
      : RecordingPolicy(context), options_(pytorch::Options::of(context)), lists_(2 * std::size_t{streams()}) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    poll();
    const std::size_t size = options_.rounded(bytes);
    const std::uint64_t list = pytorch::list_of(stream, size);
    Block* block = best_fit(list, size);
    if (block == nullptr) block = grow(list, size);
    if (block == nullptr) {
      synchronize();
      unmap_free_pages();
      block = grow(list, size);
    }
    if (block == nullptr) return nullptr;
    heap_.take(block);
    heap_.trim(block, size);
    return block;
  }

  void put(Block* block) override { heap_.put(block); }

 private:
  // The address ranges of one stream for small or for large blocks.
  struct List {
    std::vector<std::uintptr_t> ranges;  // begins, ascending
    std::vector<Block*> holes;           // unmapped, by address; whole pages
  };

  static bool is_hole(const Block* block) { return block != nullptr && block->state == BlockState::uncommitted; }
  static bool is_free(const Block* block) { return block != nullptr && block->state == BlockState::free; }
  std::size_t page_of(std::uint64_t list) const {
    return list % 2 == 0 ? pytorch::small_segment : options_.large_segment;
  }
  static std::size_t expandable_size(const Block* block) {
    return block->size + (is_hole(block->next) ? block->next->size : 0);
  }

  // Starts at the best fit; prefers larger blocks as long as they can grow less.
  Block* best_fit(std::uint64_t list, std::size_t size) {
    Block* best = heap_.find(list, size);
    if (best == nullptr || !is_hole(best->next)) return best;
    passed_.clear();
    for (;;) {
      heap_.take(best);
      passed_.push_back(best);
      Block* larger = heap_.find(list, size);
      if (larger == nullptr || expandable_size(larger) >= expandable_size(best)) break;
      best = larger;
      if (!is_hole(best->next)) break;
    }
    for (Block* block : passed_) heap_.put(block);
    return best;
  }

  // Returns a free block of at least `size`, completed with new pages; nullptr if the device is full.
  Block* grow(std::uint64_t list, std::size_t size) {
    Block* run = find_run(list, size);
    if (run == nullptr) run = add_range(list, size);
    if (run == nullptr) return nullptr;
    std::size_t missing = size;
    for (Block* block = run;;) {
      if (is_hole(block)) {
        block = map(block, std::min(block->size, round_up_to(missing, page_of(list))));
        if (block == nullptr) return nullptr;
      }
      // A mapped block has merged with its free neighbors, all of them part of the run.
      if (block->size >= size) return block;
      missing = size - block->size;
      block = block->next;
    }
  }

  // The first block of the lowest run of free and unmapped blocks with at least `size` bytes.
  Block* find_run(std::uint64_t list, std::size_t size) {
    for (Block* hole : lists_[list].holes) {
      Block* first = is_free(hole->previous) ? hole->previous : hole;
      std::size_t run = 0;
      for (Block* block = first; is_hole(block) || is_free(block); block = block->next) {
        if ((run += block->size) >= size) return first;
      }
    }
    return nullptr;
  }

  Block* add_range(std::uint64_t list, std::size_t size) {
    const std::size_t bytes = round_up_to(device_.capacity() + device_.capacity() / 8, page_of(list));
    if (size > bytes) return nullptr;
    Block* hole = heap_.add(device_.reserve(bytes), bytes, list);
    lists_[list].ranges.push_back(hole->address);
    add_hole(hole);
    return hole;
  }

  // Maps pages to the first `bytes` of a hole and frees them.
  Block* map(Block* hole, std::size_t bytes) {
    if (!device_.map(bytes, bytes / page_of(hole->stream))) return nullptr;
    remove_hole(hole);
    if (hole->size != bytes) add_hole(heap_.split(hole, bytes));
    return heap_.put(hole);
  }

  void unmap_free_pages() {
    device_.synchronize_all();
    for (std::uint64_t list = 0; list < heap_.lists(); ++list) {
      const std::size_t page = page_of(list);
      for (Block* block : heap_.blocks(list)) {
        const auto& ranges = lists_[list].ranges;
        const std::uintptr_t base = *std::prev(std::upper_bound(ranges.begin(), ranges.end(), block->address));
        const std::size_t begin = round_up_to(block->address - base, page) - (block->address - base);
        const std::size_t end = (block->address + block->size - base) / page * page - (block->address - base);
        if (end <= begin || end > block->size) continue;
        heap_.take(block);
        Block* pages = block;
        if (begin != 0) {
          pages = heap_.split(block, begin);
          heap_.put(block);
        }
        heap_.trim(pages, end - begin);
        device_.unmap(end - begin, (end - begin) / page);
        add_hole(pages);
      }
    }
  }

  // Adds a hole and merges it with its neighbors.
  void add_hole(Block* hole) {
    if (is_hole(hole->next)) {
      remove_hole(hole->next);
      heap_.absorb_next(hole);
    }
    if (is_hole(hole->previous)) {
      hole = hole->previous;
      remove_hole(hole);
      heap_.absorb_next(hole);
    }
    hole->state = BlockState::uncommitted;
    auto& holes = lists_[hole->stream].holes;
    holes.insert(position(holes, hole), hole);
  }

  void remove_hole(Block* hole) {
    auto& holes = lists_[hole->stream].holes;
    holes.erase(position(holes, hole));
    hole->state = BlockState::live;
  }

  static std::vector<Block*>::iterator position(std::vector<Block*>& holes, const Block* hole) {
    return std::ranges::lower_bound(holes, hole->address, {}, &Block::address);
  }

  const pytorch::Options options_;
  ChunkHeap heap_{pytorch::block_granule};
  std::vector<List> lists_;  // by pytorch::list_of
  std::vector<Block*> passed_;
};

}  // namespace

std::unique_ptr<Policy> make_pytorch_native(const PolicyContext& context) {
  return std::make_unique<PytorchNative>(context);
}

std::unique_ptr<Policy> make_pytorch_expandable(const PolicyContext& context) {
  return std::make_unique<PytorchExpandable>(context);
}

}  // namespace poolgrad
