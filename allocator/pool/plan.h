// Mode `planned`: connects a pool and its step planner. The planner chooses the place of a request; its slabs are
// blocks of the arenas, busy while the plan is in force.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/planner/step_planner.h"
#include "allocator/pool/cache_trimmer.h"

namespace poolgrad {

/// Requires the pool's mutex, except begin_step(). In other modes there is never a plan.
class Plan {
 public:
  Plan(PoolContext& context, Arenas& arenas, StreamTracker& tracker);

  bool is_possible() const { return planner_ != nullptr; }
  /// Starts a training step: installs a new plan, or drops a useless one. `find` searches a block for a request and
  /// sets attempt.block.
  void begin_step(CacheTrimmer& trimmer, const std::function<void(AllocationAttempt&)>& find);

  /// The planned place of the request, busy; nullptr if there is none.
  Block* place(const AllocationAttempt& attempt);
  /// Tells the planner about a block outside the plan that becomes live.
  void note_served(const Block* block, Tag tag, std::size_t alignment) noexcept;
  /// Returns a freed block to the planner; false if it belongs to the arena.
  bool take_back(Block* block, Stream stream);
  /// Frees a busy block that did not become live, in the plan or in its arena.
  void put_back(Block* block) noexcept;
  /// Makes the live block one of the arena's: drops the plan if it lies in a slab.
  Block* leave(Block* block);
  /// Turns slabs into ordinary blocks, live and free. Returns whether there were any.
  bool drop(bool useless);
  /// In the child of a fork, or when a stream is destroyed: forgets recordings and plans that are not in force yet.
  void forget_unfinished(bool useless) noexcept;

  bool owns(const Block* block) const { return planner_ != nullptr && planner_->owns(block); }
  bool is_slab(const Block* block) const { return planner_ != nullptr && planner_->is_slab(block); }
  /// The blocks of a slab, in order.
  std::vector<Block> pieces_of(const Block* slab) const;
  void count(Statistics& statistics) const;
  /// Heap bytes.
  std::size_t bookkeeping_bytes() const { return planner_ != nullptr ? planner_->bookkeeping_bytes() : 0; }

 private:
  /// Drops a plan that could not be installed and frees the blocks found for its slabs.
  void forget(const std::vector<AllocationAttempt>& slabs) noexcept;

  PoolContext& context_;
  Arenas& arenas_;
  StreamTracker& tracker_;
  const std::unique_ptr<StepPlanner> planner_;  // only in mode `planned`
};

}  // namespace poolgrad
