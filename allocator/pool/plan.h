// Mode `planned`: where a pool and its planner of steps meet. The planner says which place a request gets; the slabs
// that its places lie in are blocks of the arenas, busy as long as the plan is in force.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "allocator/pool/releaser.h"
#include "allocator/replay/step_planner.h"

namespace poolgrad {

/// Called with the pool's mutex held but for begin_step(). In other modes there never is a plan.
class Plan {
 public:
  Plan(Ground& ground, Arenas& arenas, StreamLedger& ledger);

  bool is_possible() const { return planner_ != nullptr; }
  /// A training step starts: a plan that has been made is put in force, one that has become useless is dropped. `find`
  /// looks for a block for a need, and sets need.block if there is one.
  void begin_step(Releaser& releaser, const std::function<void(Need&)>& find);

  /// The place that the plan has for it, busy; nullptr if there is none.
  Block* place(const Need& need);
  /// Tells the planner about a block that is about to be handed out, if it is not from a plan.
  void note_served(const Block* block, Tag tag, std::size_t alignment) noexcept;
  /// A live block that is given back goes to the planner; false if it is the arena's.
  bool take_back(Block* block, Stream stream);
  /// A busy block that was not handed out is free again, in the plan or in its arena.
  void put_back(Block* block) noexcept;
  /// The live block as one of the arena's: if it lies in a slab, the plan is dropped.
  Block* leave(Block* block);
  /// Slabs become ordinary blocks, live and free. True if there were any.
  bool drop(bool useless);
  /// In the child of a fork, or when a stream is destroyed: what was recorded or planned but is not yet in force is
  /// forgotten.
  void forget_unfinished(bool useless) noexcept;

  bool owns(const Block* block) const { return planner_ != nullptr && planner_->owns(block); }
  bool is_slab(const Block* block) const { return planner_ != nullptr && planner_->is_slab(block); }
  /// What a slab consists of.
  std::vector<Block> pieces_of(const Block* slab) const;
  void count(Statistics& statistics) const;
  /// Bytes of the program's heap.
  std::size_t bookkeeping_bytes() const { return planner_ != nullptr ? planner_->bookkeeping_bytes() : 0; }

 private:
  /// A plan that could not be carried out: what was found for its slabs is free again.
  void forget(const std::vector<Need>& slabs) noexcept;

  Ground& ground_;
  Arenas& arenas_;
  StreamLedger& ledger_;
  const std::unique_ptr<StepPlanner> planner_;  // in mode `planned` only
};

}  // namespace poolgrad
