// cudaMalloc and cudaFree with what the driver does behind them: allocations below 2 MiB share pages, so that an
// allocator that keeps each small block as an allocation of its own is charged for the bytes and the calls, not for a
// page each.
#pragma once

#include "allocator/replay/model_device.h"
#include "allocator/replay/policies/chunk_heap.h"

namespace poolgrad {

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

}  // namespace poolgrad
