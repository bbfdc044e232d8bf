#include "allocator/caching_allocator.h"

#include "allocator/error.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

CachingAllocator::CachingAllocator(std::unique_ptr<DeviceMemory> memory, AllocatorConfig config)
    : pool_(std::make_unique<Pool>(std::move(memory), config)) {}

CachingAllocator::~CachingAllocator() = default;

Device CachingAllocator::device() const { return pool_->settings().device; }

std::size_t CachingAllocator::usable_size(const void* pointer) const { return pool_->usable_size(pointer); }

bool CachingAllocator::expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  return pool_->expand_in_place(pointer, bytes, wanted, ThreadCaches::named(stream));
}

void CachingAllocator::use(void* pointer, Stream stream) { pool_->use(pointer, ThreadCaches::named(stream)); }

void CachingAllocator::order(Stream later, Stream earlier) {
  pool_->order(ThreadCaches::named(later), ThreadCaches::named(earlier));
}

void CachingAllocator::stream_destroyed(Stream stream) { pool_->stream_destroyed(ThreadCaches::named(stream)); }

std::size_t CachingAllocator::trim(std::size_t bytes) { return pool_->trim(bytes); }

void CachingAllocator::set_budget(std::size_t bytes) { pool_->set_budget(bytes); }

std::size_t CachingAllocator::budget() const { return pool_->budget(); }

Statistics CachingAllocator::statistics() const { return pool_->inspector().statistics(); }

void CachingAllocator::reset_peaks() { pool_->inspector().reset_peaks(); }

std::uint64_t CachingAllocator::sequence_hash() const { return pool_->inspector().sequence_hash(); }

void CachingAllocator::reset_sequence_hash() { pool_->inspector().reset_sequence_hash(); }

bool CachingAllocator::owns(const void* pointer) const noexcept { return pool_->owns(pointer); }

std::vector<BlockSnapshot> CachingAllocator::snapshot() const { return pool_->inspector().snapshot(); }

void CachingAllocator::add_client(std::weak_ptr<ReclaimClient> client) {
  pool_->ladder().add_client(std::move(client));
}

void CachingAllocator::set_out_of_memory_callback(OutOfMemoryCallback callback) {
  pool_->ladder().set_callback(std::move(callback));
}

void CachingAllocator::start_trace(std::size_t events) { pool_->inspector().start_trace(events); }

void CachingAllocator::stop_trace() { pool_->inspector().stop_trace(); }

bool CachingAllocator::tracing() const { return pool_->inspector().tracing(); }

Trace CachingAllocator::trace() const { return pool_->inspector().trace(); }

void CachingAllocator::begin_step() { pool_->begin_step(); }

const AllocatorConfig& CachingAllocator::config() const { return pool_->settings().config; }

DeviceMemory& CachingAllocator::memory() { return pool_->memory(); }

}  // namespace poolgrad
