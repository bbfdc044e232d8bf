// CUB's CachingDeviceAllocator with its default settings, from its documentation.
//
// * Rounds a request up to a bin of 512 bytes, 4 KiB, 32 KiB, 256 KiB or 2 MiB. Allocates requests above 2 MiB without
//   rounding and never caches them.
// * A cached block serves only its bin: at once on its stream, on another stream if the event recorded at its free has
//   finished. Takes the oldest such block, which then belongs to the new stream.
// * Caches a freed block if the cache stays below 6 MiB; else frees it on the device.
// * If the device refuses, frees all cached blocks and tries once more.
//
// Left out: growth factors other than 8, and the events' creation.
#include <array>
#include <deque>

#include "allocator/lab/policies/model_policy.h"

namespace poolgrad {

namespace {

class Cub : public ModelPolicy {
  static constexpr std::size_t smallest_bin = 512;
  static constexpr std::size_t growth = 8;
  static constexpr unsigned bins = 5;
  static constexpr std::size_t usual_cached = (std::size_t{6} << 20) - 1;
  static constexpr std::size_t exact_granule = 512;  // granularity of the device, for requests above all bins

 public:
  explicit Cub(const PolicyContext& context)
      : ModelPolicy(context), malloc_(device_), most_cached_(context.bytes("max_cached", usual_cached)) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    unsigned bin = 0;
    std::size_t size = smallest_bin;
    while (size < bytes && ++bin < bins) size *= growth;
    if (bin == bins) size = round_up_to(bytes, exact_granule);
    Block* block = bin < bins ? take_cached(cached_[bin], stream) : nullptr;
    if (block == nullptr) block = malloc_.allocate(size);
    if (block == nullptr) {
      free_cached();
      block = malloc_.allocate(size);
    }
    if (block == nullptr) return nullptr;
    block->stream = stream;
    block->number = bin;
    return block;
  }

  void release(Block* block, std::uint16_t) override {
    retire(block);
    if (block->number == bins || cached_bytes_ + block->size > most_cached_) return malloc_.free(block);
    block->epoch = device_.record(static_cast<std::uint16_t>(block->stream));
    cached_bytes_ += block->size;
    cached_[block->number].push_back(block);
  }

 private:
  Block* take_cached(std::deque<Block*>& blocks, std::uint16_t stream) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block* block = blocks[i];
      if (block->stream != stream && !device_.finished(block->epoch)) continue;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
      cached_bytes_ -= block->size;
      return block;
    }
    return nullptr;
  }

  void free_cached() {
    for (std::deque<Block*>& blocks : cached_) {
      for (Block* block : blocks) malloc_.free(block);
      blocks.clear();
    }
    cached_bytes_ = 0;
  }

  PackedMalloc malloc_;
  std::array<std::deque<Block*>, bins> cached_;  // oldest first
  std::size_t cached_bytes_ = 0;
  std::size_t most_cached_;
};

}  // namespace

std::unique_ptr<Policy> make_cub(const PolicyContext& context) { return std::make_unique<Cub>(context); }

}  // namespace poolgrad
