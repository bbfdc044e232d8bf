#include "allocator/report/snapshot.h"

#include "allocator/pool/pool.h"

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
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  return all_blocks(false);
}

std::vector<BlockSnapshot> Pool::all_blocks(bool number_scratch) const {
  std::vector<BlockSnapshot> blocks;
  std::size_t number = 0;
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      const auto add = [&](const Block& block) {
        BlockSnapshot entry{block.address, block.size, block.state, block.stream, 0, number, 0, 0, {}};
        if (entry.state == BlockState::live || entry.state == BlockState::pending) {
          const bool scratch = (block.number & RequestSequence::scratch_bit) != 0;
          entry.number = scratch && !number_scratch ? 0 : block.number;
          entry.requested = block.requested;
          entry.tag = block.tag;
        }
        if (entry.state == BlockState::free || entry.state == BlockState::pending) entry.epoch = block.epoch;
        blocks.push_back(entry);
      };
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (planner_ == nullptr || !planner_->is_slab(block)) {
          Arena::for_each_of(block, add);
        } else {
          for (const Block& piece : pieces_of(block)) add(piece);
        }
      }
      ++number;
    }
  }
  return blocks;
}

}  // namespace poolgrad
