#include "allocator/private_pools.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "allocator/pool/pool_context.h"
#include "allocator/thread_cache/thread_cache.h"

namespace poolgrad {

void PrivatePools::begin(CachingAllocator& pool, Id id, Filter filter) {
  const std::lock_guard filters(filters_);
  open_.reserve(open_.size() + 1);
  {
    const std::lock_guard lock(mutex_);
    ++kept_[{&pool, id}].begun;
  }
  open_.push_back({{&pool, id}, std::move(filter)});
  open_count_.store(open_.size(), std::memory_order_release);
}

bool PrivatePools::end(CachingAllocator& pool, Id id) {
  const std::lock_guard filters(filters_);
  const std::size_t ended = std::erase_if(open_, [&](const Open& open) { return open.key == Key(&pool, id); });
  open_count_.store(open_.size(), std::memory_order_release);
  return ended > 0;
}

bool PrivatePools::release(CachingAllocator& pool, Id id) {
  std::map<Key, Kept>::node_type released;
  {
    const std::lock_guard lock(mutex_);
    const auto entry = kept_.find({&pool, id});
    if (entry == kept_.end()) return false;
    if (--entry->second.begun != 0) return true;
    released = kept_.extract(entry);
    for (const Block& block : released.mapped().blocks) blocks_.set(key_of(block.pointer, block.stream), nullptr);
    block_count_ -= released.mapped().blocks.size();
  }
  for (const Block& block : released.mapped().blocks)
    if (!block.live) pool.deallocate(block.pointer, block.bytes, block.alignment, block.stream);
  return true;
}

std::optional<PrivatePools::Key> PrivatePools::taken_by(CachingAllocator& pool, Stream stream) {
  const std::shared_lock filters(filters_);
  for (const Open& open : open_)
    if (open.key.first == &pool &&
        (!open.filter || open.filter(reinterpret_cast<void*>(ThreadCacheTable::handle_of(stream)))))
      return open.key;
  return std::nullopt;
}

void* PrivatePools::allocate_if_taken(CachingAllocator& pool, std::size_t bytes, std::size_t alignment, Stream stream) {
  const std::optional<Key> key = taken_by(pool, stream);
  if (!key) return pool.allocate(bytes, alignment, stream);
  if (void* pointer = allocate_again(*key, bytes, stream)) return pointer;
  void* pointer = pool.allocate(bytes, alignment, stream);
  try {
    note({*key, pointer, bytes, alignment, stream});
  } catch (...) {
    pool.deallocate(pointer, bytes, alignment, stream);
    throw;
  }
  return pointer;
}

void* PrivatePools::allocate_again(const Key& key, std::size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto entry = kept_.find(key);
  if (entry == kept_.end()) return nullptr;
  const auto of_size = entry->second.free.find({bytes, stream.id});
  if (of_size == entry->second.free.end()) return nullptr;
  std::vector<Block*>& free = of_size->second;
  const auto found = std::find_if(free.rbegin(), free.rend(),
                                  [&](Block* block) { return key.first->transfer_to_stream(block->pointer, stream); });
  if (found == free.rend()) return nullptr;
  Block* block = *found;
  free.erase(std::prev(found.base()));
  block->live = true;
  return block->pointer;
}

void PrivatePools::note(const Block& block) {
  const std::lock_guard lock(mutex_);
  const auto entry = kept_.find(block.key);
  if (entry == kept_.end()) return;  // released meanwhile: treat it as an ordinary block
  blocks_.expect();
  entry->second.blocks.push_back(block);
  blocks_.set(key_of(block.pointer, block.stream), &entry->second.blocks.back());
  ++block_count_;
}

bool PrivatePools::keep(CachingAllocator& pool, void* pointer, std::size_t bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  Block* block = blocks_.find(key_of(pointer, stream));
  if (block == nullptr || block->key.first != &pool) return false;
  if (!block->live) die_of_misuse("double free of", pointer, pool.device(), "the private pool has it already");
  if (block->bytes != bytes) return false;  // the pool ends the program for it
  if (stream != block->stream) pool.use(pointer, stream);
  kept_.at(block->key).free[{bytes, block->stream.id}].push_back(block);
  block->live = false;
  return true;
}

PrivatePools& private_pools() {
  static auto* instance = new PrivatePools;  // never destroyed, like the pools
  return *instance;
}

}  // namespace poolgrad
