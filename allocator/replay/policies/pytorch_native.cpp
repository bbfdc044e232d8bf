// PyTorch's caching allocator, with its default settings unless others are given, from its documentation and the rules
// of its source (c10/cuda/CUDACachingAllocator).
//
// * A size is a multiple of 512 bytes. Requests of up to 1 MiB are small; each stream has small and large blocks of its
//   own, and a block stays with its stream for life.
// * The best fit by (size, address) is taken. It is split if the rest is at least 512 bytes (small) or more than 1 MiB
//   (large). Free neighbours merge at once.
// * Without a fit, a segment is allocated: 2 MiB for small blocks, 20 MiB below 10 MiB, else the size rounded up to 2
// MiB.
// * If the device refuses, all pending frees are waited for, every cached segment that is not split is freed, and the
//   segment is asked for once more. The cache is not searched again: what has just been waited for is not considered.
// * record_stream: one event per other stream at the free; the oldest events are asked at the start of each allocation.
//   A free on another stream than the block's counts as a use by it.
// * With a largest split size (`max_split`), larger blocks are never split, serve only requests as large, and exceed
//   them by less than 20 MiB; if the device refuses, one or some of those that are cached are freed before all the rest
//   is.
// * With `garbage_collection_threshold`, while more than that part of the capacity is reserved, a search that has found
//   nothing frees cached large segments that are not split before the device is asked: those at least as old as their
//   average, then those of the rest, without waiting for anything. A block ages with each request for a large block.
// * With `roundup_power2_divisions` d, a size above 512 x d bytes is a multiple of a d-th of the power of two below it.
//
// Left out: divisions that differ by size, private pools, and callbacks before the device is asked.
#include "allocator/replay/policies/policies.h"
#include "allocator/replay/policies/pytorch_rules.h"

namespace poolgrad {

namespace {

pytorch::Options native_options(const PolicyContext& context) {
  const pytorch::Options options = pytorch::Options::of(context);
  if (options.large_segment < pytorch::large_request) context.refuse("large_segment", "at least 10 MiB");
  return options;
}

class PytorchNative : public ModelPolicy {
 public:
  explicit PytorchNative(const PolicyContext& context)
      : ModelPolicy(context), segments_(device_, native_options(context)), recorded_(device_, streams()) {}

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const auto ready = [this](Block* block) { give_back(block); };
    recorded_.poll(ready);
    Block* block = segments_.allocate(bytes, stream);
    if (block == nullptr && segments_.free_oversize(bytes, stream)) block = segments_.allocate_segment(bytes, stream);
    if (block != nullptr) return block;
    recorded_.synchronize(ready);
    segments_.free_cached();
    return segments_.allocate_segment(bytes, stream);
  }

  void release(Block* block, std::uint16_t stream) override {
    share(block, stream);
    if (!recorded_.defers(block)) give_back(block);
  }

  void share(Block* block, std::uint16_t stream) override {
    if (pytorch::stream_of(block) != stream) recorded_.use(block, stream);
  }

 private:
  void give_back(Block* block) {
    retire(block);
    segments_.put(block);
  }

  pytorch::Segments segments_;
  pytorch::RecordedStreams recorded_;
};

}  // namespace

std::unique_ptr<Policy> make_pytorch_native(const PolicyContext& context) {
  return std::make_unique<PytorchNative>(context);
}

}  // namespace poolgrad
