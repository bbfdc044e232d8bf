// The hot path of CachingAllocator. A cache hit takes no lock and does no atomic read-modify-write: it looks up the
// thread's cache, enters it with plain stores, takes a block of exactly the right size, and leaves.
#include <bit>

#include "allocator/base/address_sanitizer.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "allocator/pool/pool.h"
#include "allocator/trace/trace_ring.h"

namespace poolgrad {

namespace {

// The trace fields common to allocations and frees.
struct Traced {
  std::uint64_t allocation;
  std::uintptr_t address;
  std::size_t size;
  std::size_t requested;
  Tag tag;
  std::uint64_t ticket;
  std::uint32_t stream;

  static Traced of(const Block& block, const Magazine& magazine) {
    return {block.number,      block.address,          block.size, block.requested, block.tag,
            magazine.ticket(), magazine.trace_stream()};
  }
};

[[gnu::noinline, gnu::cold]] void record_hit(TraceRing& ring, TraceKind kind, const Traced& block, std::uint8_t flags,
                                             std::source_location location = {}) noexcept {
  ring.record({.time = trace_ticks(),
               .allocation = block.allocation,
               .address = block.address,
               .size = block.requested,
               .ticket = block.ticket,
               .location = std::bit_cast<std::uint64_t>(location),
               .scope = block.tag.scope,
               .stream = block.stream,
               .slack = static_cast<std::uint32_t>(block.size - block.requested),
               .kind = kind,
               .category = block.tag.category,
               .flags = flags});
}

/// Keeps the calling thread inside its cache for its lifetime.
class Inside {
 public:
  explicit Inside(OwnerFlag& flag) : flag_(flag), entered_(flag.enter()) {}
  ~Inside() {
    if (entered_) flag_.leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  OwnerFlag& flag_;
  const bool entered_;
};

}  // namespace

inline void* Pool::allocate_at_once(std::size_t bytes, std::size_t alignment, Stream stream, Tag tag,
                                    std::source_location location) noexcept {
  const PoolSettings& settings = context_.settings;
  ThreadCache* const own = settings.own_cache();
  if (own == nullptr) return nullptr;
  ThreadCache& cache = *own;
  if (settings.decays && ++cache.hits % settings.hits_between_looks == 0) [[unlikely]]
    return nullptr;  // blocks behind the hot path must age too
  const Inside inside(cache.flag);
  if (!inside) return nullptr;
  if (!settings.tags) tag = {};
  if (bytes > Magazine::largest_block(context_.magazine_limit) || stream.device != settings.device ||
      !std::has_single_bit(alignment) || is_long_lived(tag.category)) {
    return nullptr;
  }
  Magazine* magazine = cache.find(stream.id);
  Block* block = magazine == nullptr ? nullptr : magazine->pop(settings.rounded(bytes, alignment), alignment);
  if (block == nullptr) return nullptr;
  block->state = BlockState::live;
  block->requested = bytes;
  block->tag = tag;
  block->number = cache.sequence.number(tag.category);
  allow_access(settings.device, reinterpret_cast<void*>(block->address), bytes);
  if (settings.tags) cache.sequence.request(bytes, tag.category);
  cache.recent.allocate(block->size, bytes, tag.category);
  if (cache.ring != nullptr) [[unlikely]]
    record_hit(*cache.ring, TraceKind::allocate, Traced::of(*block, *magazine), alignment_flags(alignment),
               CallSite::of(location));
  return reinterpret_cast<void*>(block->address);
}

inline bool Pool::deallocate_at_once(void* pointer, std::size_t bytes, Stream stream) noexcept {
  const PoolSettings& settings = context_.settings;
  ThreadCache* const own = settings.own_cache();
  if (own == nullptr) return false;
  ThreadCache& cache = *own;
  const Inside inside(cache.flag);
  if (!inside) return false;
  const std::size_t limit = context_.magazine_limit;
  if (bytes > Magazine::largest_block(limit) || stream.device != settings.device) return false;
  Block* block = arenas_.live(pointer);
  if (block == nullptr || block->requested != bytes || block->stream != stream.id || block->used_elsewhere ||
      is_long_lived(block->tag.category)) {
    return false;
  }
  Magazine* magazine = cache.find(stream.id);
  if (magazine == nullptr || !magazine->push(block, limit)) return false;
  if (settings.tags) cache.sequence.release(block->number, block->tag.category);
  cache.recent.release(block->size, bytes, block->tag.category);
  forbid_access(settings.device, pointer, block->size);
  if (cache.ring != nullptr) [[unlikely]]
    record_hit(*cache.ring, TraceKind::free_requested, Traced::of(*block, *magazine), completed_at_once);
  return true;
}

void* CachingAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                 std::source_location location) {
  stream = ThreadCacheTable::named(stream);
  if (void* hit = pool_->allocate_at_once(bytes, alignment, stream, thread_state.tag, location)) return hit;
  auto result = pool_->allocate({.bytes = bytes, .alignment = alignment, .stream = stream, .location = location});
  if (void** pointer = std::get_if<void*>(&result)) return *pointer;
  throw OutOfMemoryError(std::get<std::string>(result));
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, std::size_t, Stream stream) noexcept {
  stream = ThreadCacheTable::named(stream);
  if (!pool_->deallocate_at_once(pointer, bytes, stream)) pool_->deallocate(pointer, bytes, stream);
}

std::variant<void*, std::string> CachingAllocator::try_allocate(const AllocationRequest& request) {
  AllocationRequest named = request;
  named.stream = ThreadCacheTable::named(request.stream);
  if (void* hit = pool_->allocate_at_once(named.bytes, named.alignment, named.stream, named.tag, named.location)) {
    return hit;
  }
  return pool_->allocate(named);
}

}  // namespace poolgrad
