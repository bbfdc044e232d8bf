#include "allocator/pool/plan.h"

#include <new>
#include <utility>

namespace poolgrad {

// No planner with poison: it is written without the lock, when another request may already have the place.
Plan::Plan(PoolContext& context, Arenas& arenas, StreamTracker& tracker)
    : context_(context),
      arenas_(arenas),
      tracker_(tracker),
      planner_(context.settings.config.mode == AllocatorMode::planned && !context.settings.poison
                   ? std::make_unique<StepPlanner>(context.settings.granule)
                   : nullptr) {}

Block* Plan::place(const AllocationAttempt& attempt) {
  if (planner_ == nullptr || is_long_lived(attempt.tag.category)) return nullptr;
  return planner_->take(attempt.size, attempt.alignment, attempt.stream.id);
}

void Plan::note_served(const Block* block, Tag tag, std::size_t alignment) noexcept {
  if (planner_ == nullptr || is_long_lived(tag.category) || planner_->owns(block)) return;
  try {
    planner_->served(block, block->size, alignment);
  } catch (const std::bad_alloc&) {
    planner_->drop(false);  // only the start of a recording can fail, and then there are no slabs
  }
}

bool Plan::take_back(Block* block, Stream stream) {
  return planner_ != nullptr && planner_->give_back(block, block->stream != stream.id || block->used_elsewhere);
}

Block* Plan::leave(Block* block) {
  if (planner_ == nullptr || block == nullptr || !planner_->owns(block)) return block;
  const auto address = block->address;
  drop(false);
  return arenas_.live(reinterpret_cast<void*>(address));
}

void Plan::begin_step(CacheTrimmer& trimmer, const std::function<void(AllocationAttempt&)>& find) {
  std::vector<AllocationAttempt> attempts;
  try {
    {
      PoolLock lock(context_.mutex);
      const bool planned = planner_->begin_step();
      if (planner_->is_stale()) drop(true);
      // Slabs replace cached memory instead of adding to it. One step later, all memory allocated before the slabs is
      // free too.
      if (planned || planner_->is_fresh()) {
        trimmer.release(lock, SIZE_MAX);
        arenas_.store().trim();
      }
      if (!planned) return;
      for (const StepPlanner::Slab& slab : planner_->slabs()) {
        AllocationAttempt& attempt = attempts.emplace_back();
        attempt.requested = attempt.size = slab.bytes;
        attempt.alignment = context_.settings.granule;
        attempt.stream = {context_.settings.device, slab.stream};
        attempt.tag = {Category::activation, 0};
        attempt.may_reclaim = false;
      }
    }
    for (AllocationAttempt& attempt : attempts) {
      find(attempt);
      if (attempt.block == nullptr) break;
    }
    const PoolLock lock(context_.mutex);
    std::vector<Block*> blocks;
    for (const AllocationAttempt& attempt : attempts) {
      if (attempt.block != nullptr) blocks.push_back(attempt.block);
    }
    if (blocks.size() != attempts.size() || !planner_->install(blocks)) forget(attempts);
  } catch (...) {
    const PoolLock lock(context_.mutex);
    forget(attempts);
    throw;
  }
}

void Plan::forget(const std::vector<AllocationAttempt>& slabs) noexcept {
  for (const AllocationAttempt& slab : slabs) {
    if (slab.block != nullptr) put_back(slab.block);
  }
  forget_unfinished(true);
}

void Plan::forget_unfinished(bool useless) noexcept {
  if (planner_ != nullptr && !planner_->has_slabs()) planner_->drop(useless);
}

void Plan::put_back(Block* block) noexcept {
  if (owns(block)) {
    planner_->give_back(block, false);
  } else {
    tracker_.put_back(block);
  }
}

bool Plan::drop(bool useless) {
  if (planner_ == nullptr || !planner_->has_slabs()) return false;
  // Allocate first: the steps below must not throw.
  std::vector<std::pair<Block*, std::vector<Block*>>> slabs;
  std::size_t cuts = 0;
  for (const StepPlanner::Slab& slab : planner_->slabs()) {
    slabs.emplace_back(slab.block, planner_->live_in(slab.block));
    cuts += 2 * slabs.back().second.size();
    arenas_.of(slab.block).expect(slab.stream);
  }
  arenas_.store().reserve(cuts);
  for (const auto& [slab, all_live] : slabs) {
    Arena& arena = arenas_.of(slab);
    Block* rest = slab;
    for (const Block* live : all_live) {
      if (live->address != rest->address) {
        Block* after = arena.split(rest, live->address - rest->address);
        tracker_.put_back(std::exchange(rest, after));
      }
      Block* after = rest->size != live->size ? arena.split(rest, live->size) : nullptr;
      rest->number = live->number;
      rest->requested = live->requested;
      rest->tag = live->tag;
      Arena::mark_live(rest);
      rest = after;
    }
    if (rest != nullptr) tracker_.put_back(rest);
  }
  planner_->drop(useless);
  return true;
}

std::vector<Block> Plan::pieces_of(const Block* slab) const {
  std::vector<Block> pieces;
  std::uintptr_t begin = slab->address;
  const auto free_up_to = [&](std::uintptr_t end) {
    if (end == begin) return;
    Block& piece = pieces.emplace_back(*slab);
    piece.address = begin;
    piece.size = end - begin;
    piece.state = BlockState::magazine;  // cached, but not merged with its neighbors
  };
  for (const Block* live : planner_->live_in(slab)) {
    free_up_to(live->address);
    pieces.push_back(*live);
    begin = live->end();
  }
  free_up_to(slab->end());
  return pieces;
}

void Plan::count(Statistics& statistics) const {
  if (planner_ == nullptr) return;
  statistics.planned_hits = planner_->hits();
  statistics.plan_divergences = planner_->divergences();
  statistics.plans = planner_->plans();
}

}  // namespace poolgrad
