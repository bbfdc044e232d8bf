// Resizes a live block of a pool in place.
#include "allocator/error.h"
#include "allocator/pool/pool.h"

namespace poolgrad {

bool Pool::expand_in_place(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  if (stream.device != settings().device || wanted > (std::size_t{1} << 60)) return false;
  if (!resize(pointer, bytes, wanted, stream)) return false;
  if (wanted > bytes && (settings().poison || settings().races)) {
    try {
      make_ready(static_cast<std::byte*>(pointer) + bytes, {.bytes = wanted - bytes, .stream = stream});
    } catch (...) {
      resize(pointer, wanted, bytes, stream);
      throw;
    }
  }
  return true;
}

bool Pool::resize(void* pointer, std::size_t bytes, std::size_t wanted, Stream stream) {
  ThreadCache* cache = own_cache();
  PoolLock lock(context_.mutex);
  caches_.add_up(cache);
  tracker_.revive(stream);
  Block* block = arenas_.live(pointer);
  if (block == nullptr || block->requested != bytes) {
    throw ValueError("[expand_in_place] not a live block of " + std::to_string(bytes) + " bytes of the pool of " +
                     to_string(settings().device));
  }
  if (block->stream != stream.id || block->used_elsewhere) return false;
  block = plan_.leave(block);
  arenas_.store().reserve(1);  // for resize()
  const std::size_t size = settings().rounded(wanted);
  Arena& arena = arenas_.of(block);
  const auto fits = [&] { return size <= block->size + arena.free_after(block); };
  if (!fits()) caches_.drain(cache);
  if (!fits()) return false;
  // Counted and traced as a free and an allocation of the same block.
  const Tag tag = block->tag;
  record_free(block, stream, cache, true);
  context_.accounts.no_longer_active(block->size);
  tracker_.stamp(block);  // the rest of a free neighbor too is as young as in a replay of the trace
  Block* rest = arena.resize(block, size);
  ++context_.accounts.requests;
  context_.accounts.hit(tag.category);
  if (settings().tags) caches_.sequence_of(cache).request(wanted, tag.category);
  record_allocation(block, {.bytes = wanted, .stream = stream, .tag = tag}, tag, cache);
  if (wanted < bytes) poison(lock, reinterpret_cast<std::uintptr_t>(pointer) + wanted, bytes - wanted, stream);
  if (rest != nullptr) tracker_.put_back(rest);
  return true;
}

}  // namespace poolgrad
