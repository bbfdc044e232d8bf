// Mode `planned`: training steps repeat, so one is recorded, its allocations are packed into slabs, and in later steps
// the n-th request gets the place that was planned for it, without a search.
//
// A plan is advice, never truth: a place is handed out only if its bytes are free, so steps that differ from the
// recorded one lose time and tightness but never memory. What does not match is left to the pool and counted.
//
// Each stream has a sequence and a slab of its own, so places never pass from stream to stream. Blocks that other
// streams use, that outlive the next step, or that need more than the pool's alignment have no place. Called with the
// pool's mutex held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/replay/packer.h"

namespace poolgrad {

class StepPlanner {
 public:
  /// A step of more requests and releases, which may as well never end, gets no plan.
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

  /// A step starts. True if a plan has been made: the pool then looks for a block for each of slabs() and calls
  /// install() or drop(). If the plan in force has become useless, it is the pool's to drop() it: see is_stale().
  bool begin_step();
  /// The plan in force was missed in too many steps.
  bool is_stale() const { return stale_; }
  /// The step that just started is the second one under the plan.
  bool is_fresh() const { return state_ == State::replaying && planned_steps_ == 1; }
  bool has_slabs() const { return state_ == State::replaying; }
  std::vector<Slab> slabs() const;
  /// Busy blocks of at least the sizes of slabs(), in the same order. They stay the planner's until drop(). False,
  /// taking none, if the plan was dropped meanwhile.
  bool install(const std::vector<Block*>& blocks);
  /// Live blocks inside a slab, by address.
  std::vector<Block*> live_in(const Block* slab) const;
  /// The slabs and what is live in them are the pool's again: the planner forgets all and records anew; if the plan was
  /// `useless`, after twice as many steps as the last time.
  void drop(bool useless);

  /// The planned place of this request; nullptr if there is none or it is taken. Busy, with address, size, stream and
  /// window.
  Block* take(std::size_t size, std::size_t alignment, std::uint64_t stream);
  /// The request has been served by the pool.
  void served(const Block* block, std::size_t size, std::size_t alignment);
  /// A live block is given back, on its own stream or (`elsewhere`) after others have used it. True if it is in a slab:
  /// its place is free again. Blocks in a slab must not be given back elsewhere: drop() first.
  bool give_back(Block* block, bool elsewhere);
  bool is_slab(const Block* block) const;
  /// Whether the block lies in a slab.
  bool owns(const Block* block) const { return sequence_of(block->address) != nullptr; }

  std::uint64_t hits() const { return hits_; }
  /// Requests that a plan did not foresee, or whose place was taken.
  std::uint64_t divergences() const { return divergences_; }
  std::uint64_t plans() const { return plans_; }
  /// Bytes of the program's heap: a recorded step, a plan.
  std::size_t bookkeeping_bytes() const;

 private:
  enum class State : std::uint8_t {
    idle,       // no step has begun, or the planner rests
    recording,  // one whole step
    closing,    // the step after it, in which some of the recorded blocks are given back
    planned,    // slabs are wanted
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
  /// Counts an event of the step that is recorded or closed. False if there is none, or it has become too long.
  bool count_event();
  Sequence* sequence_for(std::uint64_t stream) const;
  Sequence* sequence_of(std::uintptr_t address) const;

  const std::size_t granule_;
  State state_ = State::idle;
  bool stale_ = false;
  std::uint32_t clock_ = 0;  // events since the step began
  std::uint32_t rest_ = 0;   // steps to let pass before the next recording
  std::uint32_t patience_ = 1;
  std::uint32_t planned_steps_ = 0;  // under the plan, ended
  std::uint32_t missed_steps_ = 0;   // in a row
  std::uint64_t divergences_before_step_ = 0;
  std::vector<Recorded> recorded_;
  std::unordered_map<std::uintptr_t, std::size_t> open_;  // recorded and live, by address
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::uint64_t hits_ = 0;
  std::uint64_t divergences_ = 0;
  std::uint64_t plans_ = 0;
};

}  // namespace poolgrad
