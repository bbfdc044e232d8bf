#include "allocator/snapshot.h"

#include "allocator/pool.h"

namespace poolgrad {

std::string_view to_string(BlockState state) {
  switch (state) {
    case BlockState::uncommitted: return "uncommitted";
    case BlockState::free: return "free";
    case BlockState::live: return "live";
    case BlockState::pending: return "pending";
    case BlockState::busy: return "busy";
    case BlockState::magazine: return "magazine";
  }
  return "invalid";
}

std::vector<BlockSnapshot> Pool::snapshot() const {
  std::vector<BlockSnapshot> blocks;
  const std::lock_guard lock(mutex_);
  std::size_t number = 0;
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        BlockSnapshot entry{block->address, block->size, block->state, block->stream, block->epoch, number, 0, 0, {}};
        if (block->state == BlockState::live || block->state == BlockState::pending) {
          entry.number = block->number;
          entry.requested = block->requested;
          entry.tag = block->tag;
        }
        blocks.push_back(entry);
      }
      ++number;
    }
  }
  return blocks;
}

}  // namespace poolgrad
