// The functions of CachingAllocator that must be fast. A hit takes no lock and does no atomic read-modify-write: it
// looks up the thread's cache, enters it with plain stores, follows its routine or takes a block of exactly the right
// size, and leaves.
#include <bit>

#include "allocator/base/address_sanitizer.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "allocator/pool/pool.h"
#include "allocator/trace/trace_ring.h"

namespace poolgrad {

namespace {

// Of a block that was handed out or given back: what both traces of it have.
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

/// The calling thread is inside its cache while it lives.
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
  const PoolSettings& settings = ground_.settings;
  ThreadCache* const own = settings.own_cache();
  if (own == nullptr) return nullptr;
  ThreadCache& cache = *own;
  if (settings.decays && ++cache.hits % settings.hits_between_looks == 0) [[unlikely]]
    return nullptr;  // what is cached behind the hot path gets older, too
  const Inside inside(cache.flag);
  if (!inside) return nullptr;
  if (!settings.tags) tag = {};
  if (cache.routine != nullptr) {
    const Routine::Act* act = cache.routine->allocation(bytes, alignment, stream, tag);
    if (act == nullptr) return nullptr;
    const std::uint64_t number = cache.sequence.number(tag.category);
    if (settings.tags) cache.sequence.request(bytes, tag.category);
    void* pointer = reinterpret_cast<void*>(act->address);
    allow_access(settings.device, pointer, bytes);
    if (cache.ring != nullptr) [[unlikely]]
      record_hit(*cache.ring, TraceKind::allocate,
                 {number, act->address, settings.rounded(bytes, alignment), bytes, tag, cache.routine->ticket,
                  cache.routine->trace_stream},
                 alignment_flags(alignment), CallSite::of(location));
    return pointer;
  }
  if (!cache.keeps_blocks || bytes > Magazine::largest_block || stream.device != settings.device ||
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
  const PoolSettings& settings = ground_.settings;
  ThreadCache* const own = settings.own_cache();
  if (own == nullptr) return false;
  ThreadCache& cache = *own;
  const Inside inside(cache.flag);
  if (!inside) return false;
  if (cache.routine != nullptr) {
    const Routine::Act* act = cache.routine->free(pointer, bytes, stream);
    if (act == nullptr) return false;
    const Category category = act->category();
    const std::uint64_t number = cache.sequence.last(category) - act->age;
    if (settings.tags) cache.sequence.release(number, category);
    forbid_access(settings.device, pointer, settings.rounded(bytes, act->alignment));
    if (cache.ring != nullptr) [[unlikely]]
      record_hit(*cache.ring, TraceKind::free_requested,
                 {number,
                  act->address,
                  settings.rounded(bytes, act->alignment),
                  bytes,
                  {category, act->scope},
                  cache.routine->ticket,
                  cache.routine->trace_stream},
                 completed_at_once);
    return true;
  }
  if (!cache.keeps_blocks || bytes > Magazine::largest_block || stream.device != settings.device) return false;
  Block* block = arenas_.live(pointer);
  if (block == nullptr || block->requested != bytes || block->stream != stream.id || block->used_elsewhere ||
      is_long_lived(block->tag.category)) {
    return false;
  }
  Magazine* magazine = cache.find(stream.id);
  if (magazine == nullptr || !magazine->push(block, ground_.magazine_limit)) return false;
  if (settings.tags) cache.sequence.release(block->number, block->tag.category);
  cache.recent.release(block->size, bytes, block->tag.category);
  forbid_access(settings.device, pointer, block->size);
  if (cache.ring != nullptr) [[unlikely]]
    record_hit(*cache.ring, TraceKind::free_requested, Traced::of(*block, *magazine), completed_at_once);
  return true;
}

// A request goes through functions that end in a call of the next one, so that each saves only what itself needs:
// whether the thread has a routine that answers, what the routine says, and all the rest.
namespace {

/// The calling thread's cache, if a routine answers there.
inline ThreadCache* answering(const Pool& pool) noexcept {
  ThreadCache* const own = pool.settings().own_cache();
  return own != nullptr && own->answers != nullptr ? own : nullptr;
}

[[gnu::noinline]] void* allocate_otherwise(Pool& pool, std::size_t bytes, std::size_t alignment, Stream stream,
                                           std::source_location location) {
  stream = ThreadCaches::named(stream);
  if (void* hit = pool.allocate_at_once(bytes, alignment, stream, thread_state.tag, location)) return hit;
  auto result = pool.allocate({.bytes = bytes, .alignment = alignment, .stream = stream, .location = location});
  if (void** pointer = std::get_if<void*>(&result)) return *pointer;
  throw OutOfMemoryError(std::get<std::string>(result));
}

inline void* answer(ThreadCache& cache, std::size_t bytes, std::size_t alignment, Stream stream, Tag tag) noexcept {
  const Inside inside(cache.flag);
  Routine* const routine = cache.answers;
  if (!inside || routine == nullptr) return nullptr;
  const Routine::Act* act = routine->allocation(bytes, alignment, stream, tag);
  if (act == nullptr) return nullptr;
  cache.sequence.number(tag.category);
  cache.sequence.request(bytes, tag.category);
  void* pointer = reinterpret_cast<void*>(act->address);
  allow_access(stream.device, pointer, bytes);
  return pointer;
}

[[gnu::noinline]] void* allocate_by_routine(ThreadCache& cache, std::size_t bytes, std::size_t alignment, Stream stream,
                                            std::source_location location) {
  if (void* pointer = answer(cache, bytes, alignment, stream, thread_state.tag)) [[likely]]
    return pointer;
  return allocate_otherwise(cache.pool(), bytes, alignment, stream, location);
}

[[gnu::noinline]] void deallocate_otherwise(Pool& pool, void* pointer, std::size_t bytes, Stream stream) noexcept {
  stream = ThreadCaches::named(stream);
  if (!pool.deallocate_at_once(pointer, bytes, stream)) pool.deallocate(pointer, bytes, stream);
}

inline bool answer(ThreadCache& cache, void* pointer, std::size_t bytes, Stream stream) noexcept {
  const Inside inside(cache.flag);
  Routine* const routine = cache.answers;
  if (!inside || routine == nullptr) return false;
  const Routine::Act* act = routine->free(pointer, bytes, stream);
  if (act == nullptr) return false;
  const Category category = act->category();
  cache.sequence.release(cache.sequence.last(category) - act->age, category);
  forbid_access(stream.device, pointer, cache.pool().settings().rounded(bytes, act->alignment));
  return true;
}

[[gnu::noinline]] void free_by_routine(ThreadCache& cache, void* pointer, std::size_t bytes, Stream stream) noexcept {
  if (!answer(cache, pointer, bytes, stream)) [[unlikely]]
    deallocate_otherwise(cache.pool(), pointer, bytes, stream);
}

}  // namespace

void* CachingAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                 std::source_location location) {
  if (ThreadCache* cache = answering(*pool_)) [[likely]]
    return allocate_by_routine(*cache, bytes, alignment, stream, location);
  return allocate_otherwise(*pool_, bytes, alignment, stream, location);
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, std::size_t, Stream stream) noexcept {
  if (ThreadCache* cache = answering(*pool_)) [[likely]]
    return free_by_routine(*cache, pointer, bytes, stream);
  deallocate_otherwise(*pool_, pointer, bytes, stream);
}

std::variant<void*, std::string> CachingAllocator::try_allocate(const AllocationRequest& request) {
  if (ThreadCache* cache = answering(*pool_)) [[likely]] {
    if (void* pointer = answer(*cache, request.bytes, request.alignment, request.stream, request.tag)) return pointer;
  }
  const Stream stream = ThreadCaches::named(request.stream);
  if (void* hit = pool_->allocate_at_once(request.bytes, request.alignment, stream, request.tag, request.location)) {
    return hit;
  }
  if (stream == request.stream) [[likely]]
    return pool_->allocate(request);
  AllocationRequest named = request;
  named.stream = stream;
  return pool_->allocate(named);
}

}  // namespace poolgrad
