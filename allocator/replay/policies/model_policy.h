// What the modelled allocators share: a device, and the blocks that are handed out, by number.
//
// Of the operations of a workload, a model sees allocations and frees of at least one byte: no allocator takes memory
// for nothing. `use` reaches only allocators that let a program say that a second stream uses a block (record_stream);
// with the others a program orders its streams itself before it frees, at its own cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/replay/policy.h"

namespace poolgrad {

class ModelPolicy : public Policy {
 public:
  bool allocate(const Operation& operation) final {
    Block*& block = placed(operation.block);
    block = nullptr;
    if (operation.bytes == 0) return true;
    // A request that no capacity can serve is cut to a size that can still be rounded.
    Block* found = place(std::min<std::uint64_t>(operation.bytes, 2 * largest_capacity), operation.stream);
    if (found == nullptr) return false;
    placed(operation.block) = found;
    active_ += found->size;
    return true;
  }
  void free(const Operation& operation) final {
    Block*& block = placed(operation.block);
    if (block == nullptr) return;
    release(block, operation.stream);
    block = nullptr;
  }
  void use(const Operation& operation) final {
    if (Block* block = placed(operation.block)) share(block, operation.stream);
  }
  void advance(double nanoseconds) final { device_.advance(nanoseconds); }

  std::size_t reserved() const final { return device_.reserved(); }
  std::size_t active() const final { return active_; }
  DeviceCounters counters() const final { return device_.counters(); }

 protected:
  explicit ModelPolicy(const PolicyContext& context)
      : device_(std::min(context.capacity, largest_capacity), *context.latency, streams_of(context)),
        streams_(streams_of(context)),
        placed_(context.workload != nullptr ? context.workload->blocks : 0) {}

  /// A block of at least `bytes` > 0; nullptr after everything that the allocator tries has failed.
  virtual Block* place(std::size_t bytes, std::uint16_t stream) = 0;
  /// Calls retire() before the block can be used again, now or later.
  virtual void release(Block* block, std::uint16_t stream) = 0;
  virtual void share(Block*, std::uint16_t) {}

  /// The block no longer counts as active.
  void retire(const Block* block) { active_ -= block->size; }
  std::uint16_t streams() const { return streams_; }

  ModelDevice device_;

 private:
  static constexpr std::size_t largest_capacity = std::size_t{1} << 56;

  static std::uint16_t streams_of(const PolicyContext& context) {
    return context.workload != nullptr ? std::max<std::uint16_t>(context.workload->streams, 1) : 1;
  }
  Block*& placed(std::uint32_t block) {
    if (block >= placed_.size()) placed_.resize(std::size_t{block} + 1);
    return placed_[block];
  }

  std::uint16_t streams_;
  std::vector<Block*> placed_;  // by number; nullptr for blocks of no bytes
  std::size_t active_ = 0;
};

/// `multiple` is any number, unlike in rounding.h: pages of 20 MiB are none of a power of two.
constexpr std::size_t round_up_to(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace poolgrad
