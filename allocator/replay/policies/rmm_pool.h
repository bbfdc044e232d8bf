// The suballocator of RMM's pool_memory_resource, which the pool and the bins of the binning resource stand on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocator/replay/model_device.h"
#include "allocator/replay/policies/chunk_heap.h"

namespace poolgrad {

class RmmPool {
 public:
  /// Begins with `initial` bytes, and refuses everything if it cannot have them; a `maximum` of 0 is none. Both are
  /// multiples of ModelDevice::page.
  RmmPool(ModelDevice& device, std::uint16_t streams, std::size_t initial = 0, std::size_t maximum = 0);

  /// nullptr if the pool cannot grow.
  Block* allocate(std::size_t bytes, std::uint16_t stream);
  /// The block may be used again by `stream`, and by others after they have waited for its event.
  void deallocate(Block* block, std::uint16_t stream);

 private:
  Block* steal(std::size_t size, std::uint16_t stream);
  Block* merge_lists(std::size_t size, std::uint16_t stream);
  Block* grow(std::size_t size, std::uint16_t stream);

  ModelDevice& device_;
  ChunkHeap heap_{256};
  std::vector<std::uint64_t> events_;  // by stream, of its latest free; 0 if its list is empty
  std::size_t maximum_;
  std::size_t pool_size_ = 0;
};

}  // namespace poolgrad
