// Mode `planned`: where the pool and the planner of steps meet. All but begin_planned_step() with the mutex held.
#include <new>
#include <utility>

#include "allocator/pool/pool.h"

namespace poolgrad {

Block* Pool::planned_place(const Need& need) {
  if (planner_ == nullptr || is_long_lived(need.tag.category)) return nullptr;
  return planner_->take(need.size, need.alignment, need.stream.id);
}

void Pool::note_served(const Block* block, Tag tag, std::size_t alignment) noexcept {
  if (planner_ == nullptr || is_long_lived(tag.category) || planner_->owns(block)) return;
  try {
    planner_->served(block, block->size, alignment);
  } catch (const std::bad_alloc&) {
    planner_->drop(false);  // only a recording needs memory, and there are no slabs yet
  }
}

bool Pool::return_to_plan(Block* block, Stream stream) {
  return planner_ != nullptr && planner_->give_back(block, block->stream != stream.id || block->used_elsewhere);
}

Block* Pool::leave_plan(Block* block) {
  if (planner_ == nullptr || block == nullptr || !planner_->owns(block)) return block;
  const auto address = block->address;
  drop_plan(false);
  return live_block(reinterpret_cast<void*>(address));
}

void Pool::begin_planned_step() {
  std::vector<Need> needs;
  try {
    {
      Lock lock(mutex_);
      const bool planned = planner_->begin_step();
      if (planner_->is_stale()) drop_plan(true);
      // The slabs take the place of what is cached rather than being added to it; and one step later nothing that was
      // allocated before there were slabs is left.
      if (planned || planner_->is_fresh()) release(lock, SIZE_MAX);
      if (!planned) return;
      for (const StepPlanner::Slab& slab : planner_->slabs()) {
        needs.push_back({.requested = slab.bytes,
                         .size = slab.bytes,
                         .alignment = granule_,
                         .stream = {device_, slab.stream},
                         .tag = {Category::activation, 0},
                         .may_reclaim = false});
      }
    }
    for (Need& need : needs) {
      search(need);
      if (need.block == nullptr) climb(need);
      if (need.block == nullptr) break;
    }
    const std::lock_guard lock(mutex_);
    std::vector<Block*> blocks;
    for (const Need& need : needs) {
      if (need.block != nullptr) blocks.push_back(need.block);
    }
    if (blocks.size() != needs.size() || !planner_->install(blocks)) forget_plan(needs);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    forget_plan(needs);
    throw;
  }
}

void Pool::forget_plan(const std::vector<Need>& slabs) noexcept {
  for (const Need& slab : slabs) {
    if (slab.block != nullptr) put_back(slab.block);
  }
  if (!planner_->has_slabs()) planner_->drop(true);
}

bool Pool::drop_plan(bool useless) {
  if (planner_ == nullptr || !planner_->has_slabs()) return false;
  // All that needs memory comes first.
  std::vector<std::pair<Block*, std::vector<Block*>>> slabs;
  std::size_t cuts = 0;
  for (const StepPlanner::Slab& slab : planner_->slabs()) {
    slabs.emplace_back(slab.block, planner_->live_in(slab.block));
    cuts += 2 * slabs.back().second.size();
    arena_of(reinterpret_cast<void*>(slab.block->address))->expect(slab.stream);
  }
  store_.reserve(cuts);
  for (const auto& [slab, all_live] : slabs) {
    Arena& arena = *arena_of(reinterpret_cast<void*>(slab->address));
    const auto free = [&](Block* block) {
      stamp(block);
      arena.put(block);
    };
    Block* rest = slab;
    for (const Block* live : all_live) {
      if (live->address != rest->address) {
        Block* after = arena.split(rest, live->address - rest->address);
        free(std::exchange(rest, after));
      }
      Block* after = rest->size != live->size ? arena.split(rest, live->size) : nullptr;
      rest->number = live->number;
      rest->requested = live->requested;
      rest->tag = live->tag;
      Arena::mark_live(rest);
      rest = after;
    }
    if (rest != nullptr) free(rest);
  }
  planner_->drop(useless);
  return true;
}

std::vector<Block> Pool::pieces_of(const Block* slab) const {
  std::vector<Block> pieces;
  std::uintptr_t begin = slab->address;
  const auto free_up_to = [&](std::uintptr_t end) {
    if (end == begin) return;
    Block& piece = pieces.emplace_back(*slab);
    piece.address = begin;
    piece.size = end - begin;
    piece.state = BlockState::magazine;  // cached, and apart from its neighbours
  };
  for (const Block* live : planner_->live_in(slab)) {
    free_up_to(live->address);
    pieces.push_back(*live);
    begin = live->end();
  }
  free_up_to(slab->end());
  return pieces;
}

}  // namespace poolgrad
