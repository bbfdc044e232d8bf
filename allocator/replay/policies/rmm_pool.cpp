// RMM's pool_memory_resource, from its documentation and the rules of its source.
//
// * A size is a multiple of 256 bytes. Each stream has a list of free blocks; a block that is freed joins the list of
//   the stream that it is freed on, and merges with neighbours in that list alone. Each free records an event.
// * The best fit of the stream's own list is taken, and split whenever something is left. Without a fit, that of
// another
//   stream's list, after waiting for that stream's event; the rest stays with the other stream. Without one, the lists
//   of the other streams are merged into the own list one by one, each after a wait, until a block fits.
// * Then the pool grows by as much as it has, or by the request if that is more; if the device refuses, by half of
// that,
//   and half again, down to the request. With a maximum size (`maximum_size`) it grows by half of what is left of that
//   instead, or by the request. Memory is never given back.
//
// Here the pool begins empty, unless a program chooses its `initial_size`, and grows by whole pages of 2 MiB. Left out:
// the mutex.
#include "allocator/replay/policies/rmm_pool.h"

#include <algorithm>

#include "allocator/replay/policies/model_policy.h"
#include "allocator/replay/policies/policies.h"

namespace poolgrad {

RmmPool::RmmPool(ModelDevice& device, std::uint16_t streams, std::size_t initial, std::size_t maximum)
    : device_(device), events_(streams), maximum_(maximum) {
  if (initial == 0) return;
  if (const std::uintptr_t address = device_.allocate(initial)) {
    heap_.put(heap_.add(address, initial, 0));
    pool_size_ = initial;
  } else {
    maximum_ = 1;  // nothing fits
  }
}

Block* RmmPool::allocate(std::size_t bytes, std::uint16_t stream) {
  const std::size_t size = round_up_to(bytes, 256);
  Block* block = heap_.take_fit(stream, size);
  if (block == nullptr && events_.size() > 1) block = steal(size, stream);
  if (block == nullptr && events_.size() > 1) block = merge_lists(size, stream);
  if (block == nullptr) block = grow(size, stream);
  if (block != nullptr) heap_.trim(block, size);
  return block;
}

void RmmPool::deallocate(Block* block, std::uint16_t stream) {
  events_[stream] = device_.record(stream);
  block->stream = stream;
  heap_.put(block);
}

Block* RmmPool::steal(std::size_t size, std::uint16_t stream) {
  for (std::uint16_t other = 0; other < events_.size(); ++other) {
    Block* block = other == stream ? nullptr : heap_.take_fit(other, size);
    if (block == nullptr) continue;
    if (events_[other] != 0) device_.wait(stream, events_[other]);
    return block;
  }
  return nullptr;
}

Block* RmmPool::merge_lists(std::size_t size, std::uint16_t stream) {
  for (std::uint16_t other = 0; other < events_.size(); ++other) {
    if (other == stream) continue;
    const std::vector<Block*> blocks = heap_.blocks(other);
    if (blocks.empty()) continue;
    if (events_[other] != 0) device_.wait(stream, events_[other]);
    events_[other] = 0;
    for (Block* block : blocks) {
      heap_.take(block);
      block->stream = stream;
      heap_.put(block);
    }
    if (Block* block = heap_.take_fit(stream, size)) return block;
  }
  return nullptr;
}

Block* RmmPool::grow(std::size_t size, std::uint16_t stream) {
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

namespace {

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

}  // namespace

std::unique_ptr<Policy> make_rmm_pool(const PolicyContext& context) { return std::make_unique<RmmPoolPolicy>(context); }

}  // namespace poolgrad
