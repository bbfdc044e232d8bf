// The functions of CachingAllocator that must be fast. A hit takes no lock and does no atomic read-modify-write: it
// looks up the thread's cache, enters it with plain stores, takes a block of exactly the right size, and leaves.
#include <algorithm>
#include <bit>

#include "allocator/address_sanitizer.h"
#include "allocator/call_site.h"
#include "allocator/error.h"
#include "allocator/pool.h"
#include "allocator/trace/trace_clock.h"

namespace poolgrad {

namespace {

[[gnu::noinline, gnu::cold]] void record_allocation(TraceRing& ring, const Block* block, const Magazine& magazine,
                                                    std::source_location location) noexcept {
  ring.record({.time = trace_ticks(),
               .allocation = block->number,
               .address = block->address,
               .size = block->requested,
               .ticket = magazine.ticket(),
               .location = std::bit_cast<std::uint64_t>(CallSite::of(location)),
               .scope = block->tag.scope,
               .stream = magazine.trace_stream(),
               .slack = static_cast<std::uint32_t>(block->size - block->requested),
               .kind = TraceKind::allocate,
               .category = block->tag.category});
}

[[gnu::noinline, gnu::cold]] void record_release(TraceRing& ring, const Block* block,
                                                 const Magazine& magazine) noexcept {
  ring.record({.time = trace_ticks(),
               .allocation = block->number,
               .address = block->address,
               .size = block->requested,
               .ticket = magazine.ticket(),
               .scope = block->tag.scope,
               .stream = magazine.trace_stream(),
               .slack = static_cast<std::uint32_t>(block->size - block->requested),
               .kind = TraceKind::free_requested,
               .category = block->tag.category,
               .flags = completed_at_once});
}

}  // namespace

inline void* Pool::allocate_from_magazine(std::size_t bytes, std::size_t alignment, Stream stream, Tag tag,
                                          std::source_location location) noexcept {
  const ThreadState::KnownCache known = thread_state.cache_of(place_);
  if (known.pool != id_ || !magazines_ || bytes > Magazine::largest_block || stream.device != device_ ||
      alignment > granule_ || !std::has_single_bit(alignment) || is_long_lived(tag.category)) {
    return nullptr;
  }
  ThreadCache& cache = *known.cache;
  if (decays_ && ++cache.hits % std::min<std::size_t>(1024, std::max<std::size_t>(config_.decay, 1)) == 0) [[unlikely]]
    return nullptr;  // what is cached behind the magazines gets older, too
  if (!cache.flag.enter()) return nullptr;
  Magazine* magazine = cache.find(stream.id);
  Block* block = magazine == nullptr ? nullptr : magazine->pop(rounded(bytes));
  if (block == nullptr) {
    cache.flag.leave();
    return nullptr;
  }
  block->state = BlockState::live;
  block->requested = bytes;
  block->tag = tag;
  block->number = cache.sequence.number(tag.category);
  allow_access(device_, reinterpret_cast<void*>(block->address), bytes);
  if (tags_) cache.sequence.request(bytes, tag.category);
  cache.recent.allocate(block->size, bytes, tag.category);
  if (cache.ring != nullptr) [[unlikely]]
    record_allocation(*cache.ring, block, *magazine, location);
  cache.flag.leave();
  return reinterpret_cast<void*>(block->address);
}

inline bool Pool::deallocate_to_magazine(void* pointer, std::size_t bytes, Stream stream) noexcept {
  const ThreadState::KnownCache known = thread_state.cache_of(place_);
  if (known.pool != id_ || !magazines_ || bytes > Magazine::largest_block || stream.device != device_) return false;
  Block* block = live_block(pointer);
  if (block == nullptr || block->requested != bytes || block->stream != stream.id || block->used_elsewhere ||
      is_long_lived(block->tag.category)) {
    return false;
  }
  ThreadCache& cache = *known.cache;
  if (!cache.flag.enter()) return false;
  Magazine* magazine = cache.find(stream.id);
  if (magazine == nullptr || !magazine->push(block, cache.limit)) {
    cache.flag.leave();
    return false;
  }
  if (tags_) cache.sequence.release(block->number, block->tag.category);
  cache.recent.release(block->size, bytes, block->tag.category);
  forbid_access(device_, pointer, block->size);
  if (cache.ring != nullptr) [[unlikely]]
    record_release(*cache.ring, block, *magazine);
  cache.flag.leave();
  return true;
}

void* CachingAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                 std::source_location location) {
  if (void* hit = pool_->allocate_from_magazine(bytes, alignment, stream, thread_state.tag, location)) return hit;
  auto result = pool_->allocate({.bytes = bytes, .alignment = alignment, .stream = stream, .location = location});
  if (void** pointer = std::get_if<void*>(&result)) return *pointer;
  throw OutOfMemoryError(std::get<std::string>(result));
}

std::variant<void*, std::string> CachingAllocator::try_allocate(const AllocationRequest& request) {
  if (void* hit = pool_->allocate_from_magazine(request.bytes, request.alignment, request.stream, request.tag,
                                                request.location)) {
    return hit;
  }
  return pool_->allocate(request);
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, std::size_t, Stream stream) noexcept {
  if (!pool_->deallocate_to_magazine(pointer, bytes, stream)) pool_->deallocate(pointer, bytes, stream);
}

}  // namespace poolgrad
