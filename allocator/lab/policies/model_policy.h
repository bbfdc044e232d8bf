// Common parts of models of other projects' allocators, implemented from their documented behavior: a device, and live
// blocks by number. The comment above each model states its rules, constants and omissions.
//
// A model sees the allocations and frees of at least one byte; empty ones need no memory. `use` reaches only allocators
// with a call like record_stream, by which a program reports that a second stream uses a block. With the others, a
// program orders its streams itself before it frees, at its own cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/lab/policies/chunk_heap.h"
#include "allocator/lab/replay/policy.h"

namespace poolgrad {

std::unique_ptr<Policy> make_pytorch_native(const PolicyContext& context);
std::unique_ptr<Policy> make_pytorch_expandable(const PolicyContext& context);
std::unique_ptr<Policy> make_cuda_async(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_pool(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_arena(const PolicyContext& context);
std::unique_ptr<Policy> make_rmm_binning(const PolicyContext& context);
std::unique_ptr<Policy> make_tensorflow_bfc(const PolicyContext& context);
std::unique_ptr<Policy> make_cub(const PolicyContext& context);
std::unique_ptr<Policy> make_gmlake(const PolicyContext& context);
std::unique_ptr<Policy> make_size_map_lru(const PolicyContext& context);

class ModelPolicy : public Policy {
 public:
  bool allocate(const Operation& operation) final {
    Block*& block = placed(operation.block);
    block = nullptr;
    if (operation.bytes == 0) return true;
    // Limits a request beyond any capacity to a size that can still be rounded.
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

  /// Returns a block of at least `bytes` > 0; nullptr if all attempts of the allocator fail.
  virtual Block* place(std::size_t bytes, std::uint16_t stream) = 0;
  /// Must call retire() before the block can be reused.
  virtual void release(Block* block, std::uint16_t stream) = 0;
  virtual void share(Block*, std::uint16_t) {}

  /// Counts the block as inactive.
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
  std::vector<Block*> placed_;  // by number; nullptr for empty blocks
  std::size_t active_ = 0;
};

/// cudaMalloc and cudaFree with the driver's packing: allocations below 2 MiB share pages. An allocator that caches
/// each small block separately thus pays for bytes and calls, not for a page each.
class PackedMalloc {
 public:
  explicit PackedMalloc(ModelDevice& device) : device_(device) {}

  /// nullptr if the device refuses. `size` is a multiple of 512 bytes.
  Block* allocate(std::size_t size) {
    const bool shares = size < ModelDevice::page;
    if (Block* block = shares ? heap_.take_fit(0, size) : nullptr) {
      device_.allocate_in_page(size);
      heap_.trim(block, size);
      return block;
    }
    const std::size_t bytes = shares ? ModelDevice::page : size;
    const std::uintptr_t address = device_.allocate(bytes);
    if (address == 0) return nullptr;
    Block* block = heap_.add(address, bytes, 0);
    heap_.trim(block, size);
    return block;
  }

  void free(Block* block) {
    const std::size_t size = block->size;
    if (size < ModelDevice::page) {
      block->stream = block->number = 0;
      block = heap_.put(block);
      if (block->size < ModelDevice::page) return device_.free_in_page(size);
      heap_.take(block);
    }
    device_.free(block->address, block->size);
    heap_.remove(block);
  }

 private:
  ModelDevice& device_;
  ChunkHeap heap_{512};
};

/// `multiple` is any number, unlike in rounding.h: 20 MiB is not a power of two.
constexpr std::size_t round_up_to(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace poolgrad
