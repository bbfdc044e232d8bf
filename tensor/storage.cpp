#include "tensor/storage.h"

#include "allocator/caching_allocator.h"

namespace poolgrad {

namespace {
constexpr std::size_t alignment = 64;
}

Storage::Storage(Device device, std::size_t bytes, std::source_location location)
    : stream_(current_stream(device)),
      bytes_(bytes),
      pool_(allocator_for(device)),
      data_(pool_.allocate(bytes, alignment, stream_, location)) {}

Storage::~Storage() { pool_.deallocate(data_, bytes_, alignment, stream_); }

}  // namespace poolgrad
