#include "allocator/caching_allocator.h"

#include "allocator/error.h"
#include "allocator/pool.h"

namespace poolgrad {

CachingAllocator::CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config)
    : pool_(std::make_unique<Pool>(std::move(memory), config)) {}

CachingAllocator::~CachingAllocator() = default;

Device CachingAllocator::device() const { return pool_->device(); }

void* CachingAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                 std::source_location location) {
  auto result = pool_->allocate({.bytes = bytes, .alignment = alignment, .stream = stream, .location = location});
  if (void** pointer = std::get_if<void*>(&result)) return *pointer;
  throw OutOfMemoryError(std::get<std::string>(result));
}

std::variant<void*, std::string> CachingAllocator::try_allocate(const AllocationRequest& request) {
  return pool_->allocate(request);
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, std::size_t, Stream stream) noexcept {
  pool_->deallocate(pointer, bytes, stream);
}

std::size_t CachingAllocator::usable_size(const void* pointer) const { return pool_->usable_size(pointer); }

std::size_t CachingAllocator::trim(std::size_t bytes) { return pool_->trim(bytes); }

void CachingAllocator::set_budget(std::size_t bytes) { pool_->set_budget(bytes); }

std::size_t CachingAllocator::budget() const { return pool_->budget(); }

Statistics CachingAllocator::statistics() const { return pool_->statistics(); }

void CachingAllocator::reset_peaks() { pool_->reset_peaks(); }

std::uint64_t CachingAllocator::sequence_hash() const { return pool_->sequence_hash(); }

void CachingAllocator::reset_sequence_hash() { pool_->reset_sequence_hash(); }

std::vector<BlockSnapshot> CachingAllocator::snapshot() const { return pool_->snapshot(); }

void CachingAllocator::add_client(std::weak_ptr<ReclaimClient> client) { pool_->add_client(std::move(client)); }

void CachingAllocator::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  pool_->set_out_of_memory_callback(std::move(callback));
}

DeviceMemory& CachingAllocator::memory() { return pool_->memory(); }

}  // namespace poolgrad
