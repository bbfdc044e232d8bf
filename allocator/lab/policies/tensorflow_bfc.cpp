// TensorFlow's BFCAllocator (best fit with coalescing), from its documentation and the rules of its source.
//
// * A size is a multiple of 256 bytes. Free chunks are in 21 bins, 256 bytes x 2^i. Takes the smallest fitting chunk of
//   the first bin with one, which is the best fit by (size, address).
// * A chunk is split only if it is at least twice the request, or if 128 MiB or more would be left
//   (`fragmentation_fraction`: that part of the capacity). Free neighbors of a region merge at once.
// * Without a fit, adds a region: 2 MiB at first (without `allow_growth`: all memory), twice that for each later one,
//   doubled until the request fits, but within the limit. If the device refuses, tries 0.9 of that repeatedly down to
//   the request, but only at the first such refusal; later ones fail at once.
// * Then, if the remaining memory and the regions without a live byte suffice together, frees these and adds a region
//   (`garbage_collection`).
//
// Left out: the order of streams. TensorFlow computes on one stream and orders its copies itself, so blocks of all
// streams share the bins without events. Also left out: waiting up to ten seconds for another thread's free.
#include "allocator/lab/policies/chunk_heap.h"
#include "allocator/lab/policies/model_policy.h"

namespace poolgrad {

namespace {

constexpr std::size_t first_region = std::size_t{2} << 20;

class TensorflowBfc : public ModelPolicy {
  static constexpr std::size_t granule = 256;

 public:
  explicit TensorflowBfc(const PolicyContext& context)
      : ModelPolicy(context), collects_garbage_(context.flag("garbage_collection", true)) {
    const auto limit = static_cast<double>(device_.capacity());
    const double fraction = context.fraction("fragmentation_fraction", 0);
    if (fraction > 0) largest_rest_ = static_cast<std::size_t>(fraction * limit);
    if (!context.flag("allow_growth", true)) next_region_ = std::max(granule, available());
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t) override {
    const std::size_t size = round_up_to(bytes, granule);
    Block* block = heap_.take_fit(0, size);
    if (block == nullptr) block = extend(size);
    if (block == nullptr && collects_garbage_ && free_regions(size)) block = extend(size);
    if (block == nullptr) return nullptr;
    if (block->size >= 2 * size || block->size - size >= largest_rest_) heap_.trim(block, size);
    return block;
  }

  void release(Block* block, std::uint16_t) override {
    retire(block);
    heap_.put(block);
  }

 private:
  std::size_t available() const { return (device_.capacity() - total_) / granule * granule; }

  Block* extend(std::size_t size) {
    if (size > available()) return nullptr;
    bool doubled = false;
    while (next_region_ < size) {
      next_region_ *= 2;
      doubled = true;
    }
    std::size_t bytes = std::min(next_region_, available());
    std::uintptr_t address = device_.allocate(bytes);
    if (address == 0 && !backpedalled_) {
      backpedalled_ = true;
      while (address == 0) {
        bytes = static_cast<std::size_t>(static_cast<double>(bytes) * 0.9) / granule * granule;
        if (bytes < size) break;
        address = device_.allocate(bytes);
      }
    }
    if (address == 0) return nullptr;
    if (!doubled && next_region_ < device_.capacity()) next_region_ *= 2;
    total_ += bytes;
    return heap_.add(address, bytes, 0);
  }

  // Frees empty regions if they and the remaining memory can hold `size`; returns whether it did.
  bool free_regions(std::size_t size) {
    std::size_t unused = 0;
    const std::vector<Block*> regions = heap_.whole_segments(0);
    for (const Block* region : regions) unused += region->size;
    if (unused == 0 || size > available() + unused) return false;
    for (Block* region : regions) {
      device_.free(region->address, region->size);
      total_ -= region->size;
      heap_.remove(region);
    }
    return true;
  }

  ChunkHeap heap_{granule};
  bool collects_garbage_;
  std::size_t largest_rest_ = std::size_t{128} << 20;
  std::size_t next_region_ = first_region;
  std::size_t total_ = 0;  // of all regions
  bool backpedalled_ = false;
};

}  // namespace

std::unique_ptr<Policy> make_tensorflow_bfc(const PolicyContext& context) {
  return std::make_unique<TensorflowBfc>(context);
}

}  // namespace poolgrad
