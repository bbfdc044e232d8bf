// Mode `planned`: training steps repeat, so the planner records one and packs its allocations into slabs. In later
// steps the n-th request gets its planned place without a search.
//
// A plan is a hint: a place is used only if its bytes are free. Steps that differ from the recorded one are slower and
// less tightly packed, but correct. The pool serves and counts requests that do not match.
//
// Each stream has its own sequence and slab, so places never move between streams. A block has no place if other
// streams use it, if it outlives the next step, or if it needs more than the pool's alignment. All functions require
// the pool's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/planner/packer.h"

namespace poolgrad {

class StepPlanner {
 public:
  /// Steps with more requests and frees get no plan; such a step may never end.
  static constexpr std::uint32_t most_events = std::uint32_t{1} << 21;

  explicit StepPlanner(std::size_t granule);
  ~StepPlanner();
  StepPlanner(const StepPlanner&) = delete;
  StepPlanner& operator=(const StepPlanner&) = delete;

  struct Slab {
    std::uint64_t stream = 0;
    std::size_t bytes = 0;
    Block* block = nullptr;
  };

  /// Starts a step. Returns true if it made a plan: the pool then finds a block for each of slabs() and calls install()
  /// or drop(). If the current plan is useless, the pool must drop() it: see is_stale().
  bool begin_step();
  /// Whether too many steps missed the current plan.
  bool is_stale() const { return stale_; }
  /// Whether the step that just started is the second one under the plan.
  bool is_fresh() const { return state_ == State::replaying && planned_steps_ == 1; }
  bool has_slabs() const { return state_ == State::replaying; }
  std::vector<Slab> slabs() const;
  /// Installs busy blocks of at least the sizes of slabs(), in the same order, which the planner owns until drop().
  /// Returns false, taking none, if the plan was dropped meanwhile.
  bool install(const std::vector<Block*>& blocks);
  /// Live blocks inside a slab, by address.
  std::vector<Block*> live_in(const Block* slab) const;
  /// Returns the slabs and their live blocks to the pool, forgets the plan and records again; if the plan was
  /// `useless`, after twice as many steps as the last time.
  void drop(bool useless);

  /// The planned place of this request; nullptr if there is none or it is occupied. Returns a busy block with address,
  /// size, stream and window.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// Records that the pool served the request.
  void served(const Block* block, std::size_t size, std::size_t alignment);
  /// Frees a live block, on its own stream or (`elsewhere`) after others have used it. Returns true if it is in a slab:
  /// its place is free again. Blocks in a slab must not be freed elsewhere: drop() first.
  bool give_back(Block* block, bool elsewhere);
  bool is_slab(const Block* block) const;
  /// Whether the block lies in a slab.
  bool owns(const Block* block) const { return sequence_of(block->address) != nullptr; }

  std::uint64_t hits() const { return hits_; }
  /// Requests outside the plan, or with an occupied place.
  std::uint64_t divergences() const { return divergences_; }
  std::uint64_t plans() const { return plans_; }
  /// Heap bytes of the recorded step and the plan.
  std::size_t bookkeeping_bytes() const;

 private:
  enum class State : std::uint8_t {
    idle,       // no step has begun, or the planner rests
    recording,  // one whole step
    closing,    // the step after it, which frees some of the recorded blocks
    planned,    // needs slabs
    replaying
  };
  struct Place;
  struct Sequence;
  struct Recorded {
    std::size_t size = 0;
    std::uint64_t stream = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    bool given_back = false;
    bool plannable = true;
  };

  bool make_plan();
  void forget_recording();
  /// Counts an event of the recorded or closing step. Returns false if there is no such step or it is too long.
  bool count_event();
  Sequence* sequence_for(std::uint64_t stream) const;
  Sequence* sequence_of(std::uintptr_t address) const;

  const std::size_t granule_;
  State state_ = State::idle;
  bool stale_ = false;
  std::uint32_t clock_ = 0;  // events since the step began
  std::uint32_t rest_ = 0;   // steps to skip before the next recording
  std::uint32_t patience_ = 1;
  std::uint32_t planned_steps_ = 0;  // ended, under the plan
  std::uint32_t missed_steps_ = 0;   // consecutive
  std::uint64_t divergences_before_step_ = 0;
  std::vector<Recorded> recorded_;
  std::unordered_map<std::uintptr_t, std::size_t> open_;  // recorded and live, by address
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::uint64_t hits_ = 0;
  std::uint64_t divergences_ = 0;
  std::uint64_t plans_ = 0;
};

}  // namespace poolgrad
