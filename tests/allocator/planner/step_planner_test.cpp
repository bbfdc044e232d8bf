// The planner alone, with a slab of made-up addresses and a pool whose addresses only rise.
#include "allocator/planner/step_planner.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

namespace poolgrad {
namespace {

constexpr std::uintptr_t slab_base = 0x100000;

class StepPlannerTest : public ::testing::Test {
 protected:
  /// Returns a place of the plan if there is one, else one of the "pool".
  Block* allocate(std::size_t size, std::uint64_t stream = 0, std::size_t alignment = 64) {
    Block* block = planner_.take(size, alignment, stream);
    if (block == nullptr) {
      block = &pool_.emplace_back();
      block->address = next_ += 0x10000;
      block->size = size;
      block->stream = stream;
      planner_.served(block, size, alignment);
    } else {
      EXPECT_EQ(block->size, size);
      EXPECT_EQ(block->stream, stream);
      for (const auto& [address, other] : planned_) {
        EXPECT_TRUE(block->end() <= other->address || other->end() <= block->address) << "overlaps live memory";
      }
      planned_[block->address] = block;
    }
    return block;
  }
  void free(Block* block, bool elsewhere = false) {
    const bool planned = planned_.erase(block->address) != 0;
    EXPECT_EQ(planner_.give_back(block, elsewhere), planned);
  }
  /// Returns true if a plan was made, and activates it.
  bool begin_step() {
    if (!planner_.begin_step()) return false;
    std::vector<Block*> blocks;
    for (const StepPlanner::Slab& slab : planner_.slabs()) {
      Block& block = pool_.emplace_back();
      block.address = slab_base + 0x1000000 * blocks.size();
      block.size = slab.bytes;
      block.stream = slab.stream;
      blocks.push_back(&block);
    }
    return planner_.install(blocks);
  }
  bool planned(const Block* block) const { return planned_.contains(block->address); }

  /// Two blocks at once, then one more in the place of the first.
  void step() {
    Block* a = allocate(640);
    Block* b = allocate(128);
    free(a);
    Block* c = allocate(512);
    free(b);
    free(c);
  }

  StepPlanner planner_{64};
  std::deque<Block> pool_;
  std::map<std::uintptr_t, Block*> planned_;
  std::uintptr_t next_ = 0x40000000;
};

TEST_F(StepPlannerTest, ServesEveryRequestOfIdenticalStepsFromThePlan) {
  step();  // before the first step begins: not recorded
  EXPECT_FALSE(begin_step());
  step();
  ASSERT_TRUE(begin_step());
  EXPECT_EQ(planner_.slabs().at(0).bytes, 768u);
  for (int i = 0; i < 5; ++i) {
    step();
    EXPECT_FALSE(begin_step());
  }
  EXPECT_EQ(planner_.hits(), 15u);
  EXPECT_EQ(planner_.divergences(), 0u);
  EXPECT_EQ(planner_.plans(), 1u);
}

TEST_F(StepPlannerTest, LeavesUnplannedRequestsToThePool) {
  begin_step();
  step();
  begin_step();
  Block* surprise = allocate(4096);
  EXPECT_FALSE(planned(surprise));
  step();
  free(surprise);
  EXPECT_EQ(planner_.hits(), 3u);
  EXPECT_EQ(planner_.divergences(), 1u);
}

TEST_F(StepPlannerTest, ResumesThePlanAfterAMissingRequest) {
  begin_step();
  step();
  begin_step();
  Block* b = allocate(128);  // the first was not requested
  Block* c = allocate(512);
  EXPECT_TRUE(planned(b) && planned(c));
  free(b);
  free(c);
  EXPECT_EQ(planner_.divergences(), 1u);
}

TEST_F(StepPlannerTest, NeverReturnsALivePlace) {
  begin_step();
  step();
  begin_step();
  Block* a = allocate(640);
  Block* b = allocate(128);
  Block* c = allocate(512);  // planned for the place of the first, which is not freed yet
  EXPECT_FALSE(planned(c));
  free(b);
  free(c);
  begin_step();  // nor in the next step
  Block* again = allocate(640);
  EXPECT_FALSE(planned(again));
  free(again);
  free(a);
  begin_step();
  again = allocate(640);
  EXPECT_TRUE(planned(again));
  free(again);
}

TEST_F(StepPlannerTest, PlansBlocksThatAreFreedInTheNextStep) {
  Block* gradient = nullptr;
  const auto with_gradient = [&] {
    if (gradient != nullptr) free(gradient);
    Block* a = allocate(640);
    gradient = allocate(128);
    free(a);
    free(allocate(704));
  };
  begin_step();
  with_gradient();
  EXPECT_FALSE(begin_step()) << "waits for the gradient's release";
  with_gradient();
  ASSERT_TRUE(begin_step());
  for (int i = 0; i < 4; ++i) {
    with_gradient();
    EXPECT_TRUE(planned(gradient));
    begin_step();
  }
  EXPECT_EQ(planner_.divergences(), 0u);
  EXPECT_EQ(planner_.hits(), 12u);
}

TEST_F(StepPlannerTest, DoesNotPlanLastingBlocksOrThoseOfSeveralStreams) {
  begin_step();
  allocate(64);                  // stays
  free(allocate(128), true);     // used on another stream
  free(allocate(256, 0, 4096));  // more strictly aligned than a place
  free(allocate(512));
  begin_step();
  ASSERT_TRUE(begin_step());
  EXPECT_EQ(planner_.slabs().at(0).bytes, 512u);
  allocate(64);
  free(allocate(128), true);
  free(allocate(256, 0, 4096));
  Block* last = allocate(512);
  EXPECT_TRUE(planned(last));
  free(last);
  EXPECT_EQ(planner_.divergences(), 0u);
}

TEST_F(StepPlannerTest, GivesEachStreamItsOwnSlab) {
  const auto two_streams = [&](bool swap) {
    Block* a = allocate(640, swap ? 7 : 0);
    Block* b = allocate(640, swap ? 0 : 7);
    free(a);
    free(b);
  };
  begin_step();
  two_streams(false);
  ASSERT_TRUE(begin_step());
  ASSERT_EQ(planner_.slabs().size(), 2u);
  two_streams(true);  // the order between streams does not matter
  EXPECT_EQ(planner_.hits(), 2u);
  EXPECT_EQ(planner_.divergences(), 0u);
}

TEST_F(StepPlannerTest, DropsAPlanThatOftenMisses) {
  begin_step();
  step();
  begin_step();
  int steps = 0;
  while (!planner_.is_stale()) {
    ASSERT_LT(++steps, 10);
    free(allocate(99968));
    begin_step();
  }
  planner_.drop(true);
  EXPECT_FALSE(planner_.has_slabs());
  for (int i = 0; i < 3 && !begin_step(); ++i) free(allocate(99968));
  EXPECT_EQ(planner_.slabs().at(0).bytes, 99968u);
  EXPECT_EQ(planner_.plans(), 2u);
}

TEST_F(StepPlannerTest, ListsTheLiveBlocksOfASlab) {
  begin_step();
  step();
  begin_step();
  Block* a = allocate(640);
  Block* b = allocate(128);
  const Block* slab = planner_.slabs().at(0).block;
  std::vector<Block*> live = planner_.live_in(slab);
  ASSERT_EQ(live.size(), 2u);
  EXPECT_LT(live[0]->address, live[1]->address);
  EXPECT_TRUE(planner_.owns(a));
  free(a);
  EXPECT_EQ(planner_.live_in(slab), std::vector<Block*>{b});
  free(b);
}

// A program that begins a step once and never again has a step without end.
TEST_F(StepPlannerTest, DropsAnEndlessStep) {
  Block block;
  block.address = 0x1000;
  block.size = 64;
  const auto go_on = [&] {
    for (std::uint32_t i = 0; i <= StepPlanner::most_events / 2; ++i) {
      planner_.served(&block, block.size, 64);
      EXPECT_FALSE(planner_.give_back(&block, false));
    }
  };
  begin_step();
  const std::size_t before = planner_.bookkeeping_bytes();
  go_on();
  EXPECT_EQ(planner_.bookkeeping_bytes(), before) << "what was recorded is forgotten, and nothing more is";
  begin_step();  // records again
  Block* kept = allocate(640);
  begin_step();  // the other may come back in this step
  go_on();
  EXPECT_EQ(planner_.bookkeeping_bytes(), before);
  free(kept);

  for (int i = 0; i < 4 && !planner_.has_slabs(); ++i) {
    begin_step();
    step();
  }
  EXPECT_EQ(planner_.plans(), 1u) << "steps that end are planned";
}

TEST_F(StepPlannerTest, MakesNoPlanForEmptySteps) {
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(begin_step());
  allocate(64);  // and keep it
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(begin_step());
  EXPECT_EQ(planner_.plans(), 0u);
}

}  // namespace
}  // namespace poolgrad
