// From recorded traces to workloads: blocks older than the trace, omitted events, and contradictory files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/error.h"
#include "allocator/lab/replay/workload.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Writes events as a pool would.
struct Recorder {
  Trace trace;
  std::uint64_t time = 0;

  Recorder() { trace.streams = {0, 77}; }
  TraceEvent& add(TraceKind kind, std::uint64_t address = 0, std::uint64_t size = 0, std::uint32_t stream = 0) {
    TraceEvent event;
    event.kind = kind;
    event.address = address;
    event.size = size;
    event.stream = stream;
    event.time = time += 100;
    trace.events.push_back(event);
    return trace.events.back();
  }
  void allocate(std::uint64_t address, std::uint64_t size, std::uint32_t stream = 0) {
    add(TraceKind::allocate, address, size, stream).category = Category::activation;
  }
  void free(std::uint64_t address, std::uint64_t size, std::uint32_t stream = 0) {
    add(TraceKind::free_requested, address, size, stream);
    add(TraceKind::free_completed, address, size, stream);
  }
  Workload workload() const { return workload_of(trace, "test"); }
};

std::string refusal(const Recorder& recorder) {
  try {
    recorder.workload();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<OperationKind> kinds(const Workload& workload) {
  std::vector<OperationKind> result;
  for (const Operation& operation : workload.operations) result.push_back(operation.kind);
  return result;
}

constexpr auto A = OperationKind::allocate;
constexpr auto F = OperationKind::free;

TEST(WorkloadOf, NumbersBlocksByAllocationDespiteReusedAddresses) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.free(0x1000, 10);
  recorder.allocate(0x1000, 20);
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(A, F, A));
  EXPECT_EQ(workload.blocks, 2u);
  EXPECT_EQ(workload.operations[1].block, 0u);
  EXPECT_EQ(workload.operations[1].bytes, 10u);
  EXPECT_EQ(workload.operations[2].block, 1u);
  EXPECT_EQ(workload.operations[2].category, Category::activation);
  EXPECT_EQ(workload.name, "test");
  EXPECT_EQ(workload.peak_requested(), 20u);
}

TEST(WorkloadOf, BeginsWithTheEarlierLiveBlocks) {
  Recorder recorder;
  recorder.allocate(0x3000, 30);
  recorder.free(0x1000, 10);  // allocated before the trace
  BlockSnapshot block;        // and one that lived through it
  block.state = BlockState::live;
  block.address = 0x2000;
  block.requested = 20;
  block.stream = 77;
  block.tag.category = Category::parameter;
  recorder.trace.blocks.push_back(block);
  block.address = 0x3000;  // allocated in the trace
  block.requested = 30;
  recorder.trace.blocks.push_back(block);
  block.address = 0x4000;  // not live
  block.state = BlockState::free;
  recorder.trace.blocks.push_back(block);
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(A, A, A, F));
  EXPECT_EQ(workload.operations[0].bytes, 10u);
  EXPECT_EQ(workload.operations[1].bytes, 20u);
  EXPECT_EQ(workload.operations[1].category, Category::parameter);
  EXPECT_EQ(workload.operations[1].stream, 1u);
  EXPECT_EQ(workload.operations[2].bytes, 30u);
  EXPECT_EQ(workload.operations[3].block, 0u);
  EXPECT_EQ(workload.streams, 2u);
  EXPECT_EQ(workload.peak_requested(), 60u);
}

TEST(WorkloadOf, LearnsTheSizeOfAnEarlierBlockFromItsFree) {
  Recorder recorder;
  recorder.add(TraceKind::stream_use, 0x1000, 0, 1);
  recorder.free(0x1000, 640);
  recorder.add(TraceKind::stream_use, 0x2000, 0, 1);  // its size is never recorded
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(A, OperationKind::use, F));
  EXPECT_EQ(workload.operations[0].bytes, 640u);
  EXPECT_EQ(workload.operations[1].block, 0u);
}

TEST(WorkloadOf, OmitsFailedRequestsAndInternalEvents) {
  Recorder recorder;
  recorder.add(TraceKind::segment_map, 0x200000, 1 << 21);
  recorder.add(TraceKind::out_of_memory, 5, 1 << 30);
  recorder.add(TraceKind::stage);
  recorder.allocate(0x200000, 1);
  recorder.add(TraceKind::segment_unmap, 0x200000, 1 << 21);
  EXPECT_THAT(kinds(recorder.workload()), ElementsAre(A));
}

TEST(WorkloadOf, FreesFailedRequestsAtOnceIfAsked) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.add(TraceKind::out_of_memory, 0x1000, 1 << 30, 1);
  recorder.free(0x1000, 10);
  const Workload workload = workload_of(recorder.trace, "test", true);
  ASSERT_THAT(kinds(workload), ElementsAre(A, A, F, F));
  EXPECT_EQ(workload.operations[1].bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(workload.operations[1].stream, 1u);
  EXPECT_EQ(workload.operations[2].block, 1u);
  EXPECT_EQ(workload.operations[3].block, 0u);
  EXPECT_EQ(workload.peak_requested(), (std::size_t{1} << 30) + 10);
}

TEST(WorkloadOf, KeepsStreamsOrdersStepsAndThinkTime) {
  Recorder recorder;
  recorder.add(TraceKind::step);
  recorder.allocate(0x1000, 1, 1);
  recorder.time += 5000;
  recorder.add(TraceKind::stream_order, 1, 0, 0);
  recorder.add(TraceKind::free_requested, 0x1000, 1, 0);
  recorder.time += std::uint64_t{1} << 40;
  recorder.add(TraceKind::step);
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(OperationKind::step, A, OperationKind::order, F, OperationKind::step));
  // Streams are numbered by appearance.
  EXPECT_EQ(workload.operations[1].stream, 0u);
  EXPECT_EQ(workload.operations[2].stream, 1u);
  EXPECT_EQ(workload.operations[2].block, 0u);
  EXPECT_EQ(workload.operations[2].think, 5100u);
  EXPECT_EQ(workload.operations[3].stream, 1u) << "freed on another stream than its own";
  EXPECT_EQ(workload.operations[4].think, UINT32_MAX) << "more than fits";
}

TEST(WorkloadOf, HoldsAPendingBlockWithoutAKnownStream) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.add(TraceKind::free_requested, 0x1000, 10);
  recorder.allocate(0x2000, 20);
  recorder.add(TraceKind::free_completed, 0x1000, 10);
  recorder.allocate(0x3000, 30);
  EXPECT_THAT(kinds(recorder.workload()), ElementsAre(A, A, F, A));

  recorder.trace.events[1].stream = 1;  // ignored: the policy waits by its own rules
  EXPECT_THAT(kinds(recorder.workload()), ElementsAre(A, F, A, A));
}

TEST(WorkloadOf, CountsTheThinkTimeAroundAPendingBlock) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.time += 5000;
  recorder.add(TraceKind::free_requested, 0x1000, 10);
  recorder.allocate(0x2000, 20);
  recorder.time += 300;
  recorder.add(TraceKind::free_completed, 0x1000, 10);
  recorder.allocate(0x3000, 30);
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(A, A, F, A));
  EXPECT_EQ(workload.operations[1].think, 5200u) << "before and after it was asked for";
  EXPECT_EQ(workload.operations[2].think, 400u);
  EXPECT_EQ(workload.operations[3].think, 100u);
}

// The most that a small file can have: reading it must not take quadratic time.
TEST(WorkloadOf, FindsTheStreamOfManyBlocksAmongManyStreams) {
  constexpr std::uint64_t count = 300'000;
  Recorder recorder;
  for (std::uint64_t i = 0; i < count; ++i) {
    recorder.trace.streams.push_back(1000 + i);
    recorder.trace.blocks.push_back({.address = 64 * (i + 1), .size = 64, .state = BlockState::live, .requested = 64});
    recorder.trace.blocks.back().stream = i % 2 == 0 ? 1000 : 999;  // a stream missing from the trace
  }
  const Workload workload = recorder.workload();
  EXPECT_EQ(workload.blocks, count);
  EXPECT_EQ(workload.streams, 1u);
}

TEST(WorkloadOf, ToleratesThreadsMergedOutOfOrder) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.trace.events.back().allocation = 1;
  recorder.allocate(0x1000, 20);  // the other thread's clock was a little late
  recorder.trace.events.back().allocation = 2;
  recorder.add(TraceKind::free_requested, 0x1000, 10).allocation = 1;
  const Workload workload = recorder.workload();
  ASSERT_THAT(kinds(workload), ElementsAre(A, A, F));
  EXPECT_EQ(workload.operations[2].block, 0u);
}

TEST(WorkloadOf, IsEmptyForAnEmptyTrace) {
  const Workload workload = workload_of(Trace{}, "nothing");
  EXPECT_TRUE(workload.operations.empty());
  EXPECT_EQ(workload.streams, 1u);
  EXPECT_EQ(workload.peak_requested(), 0u);
}

TEST(WorkloadOf, RefusesABlockThatIsFreedTwice) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.free(0x1000, 10);
  recorder.free(0x1000, 10);
  EXPECT_EQ(refusal(recorder), "[workload_of] a block is freed twice (event 3 of 5)");
}

TEST(WorkloadOf, RefusesAnAddressThatIsAllocatedTwice) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.allocate(0x1000, 10);
  EXPECT_THAT(refusal(recorder), HasSubstr("is allocated while it is live (event 1 of 2)"));
}

TEST(WorkloadOf, RefusesABlockThatIsBothFreedAndLiveAtTheEnd) {
  Recorder recorder;
  recorder.allocate(0x1000, 10);
  recorder.free(0x1000, 10);
  BlockSnapshot block;
  block.state = BlockState::live;
  block.address = 0x1000;
  recorder.trace.blocks.push_back(block);
  EXPECT_THAT(refusal(recorder), HasSubstr("live at the end though it was freed"));
}

TEST(WorkloadOf, RefusesNonsense) {
  Recorder kind;
  kind.add(static_cast<TraceKind>(200));
  EXPECT_THAT(refusal(kind), HasSubstr("unknown kind 200 (event 0 of 1)"));

  Recorder category;
  category.allocate(0x1000, 1);
  category.trace.events[0].category = static_cast<Category>(99);
  EXPECT_THAT(refusal(category), HasSubstr("unknown category 99"));

  Recorder stream;
  stream.allocate(0x1000, 1, 2);
  EXPECT_THAT(refusal(stream), HasSubstr("stream 2 of 2"));

  Recorder earlier;
  earlier.add(TraceKind::stream_order, std::uint64_t{1} << 60);
  EXPECT_THAT(refusal(earlier), HasSubstr("stream 1152921504606846976 of 2"));

  Recorder size;
  size.allocate(0x1000, std::uint64_t{1} << 63);
  EXPECT_THAT(refusal(size), HasSubstr("a block of 9223372036854775808 bytes"));

  Recorder sum;
  for (std::uint64_t i = 1; i < 100; ++i) sum.allocate(i << 57, std::uint64_t{1} << 55);
  EXPECT_THAT(refusal(sum), HasSubstr("live bytes"));

  Recorder use;
  use.allocate(0x1000, 1);
  use.free(0x1000, 1);
  use.add(TraceKind::stream_use, 0x1000, 0, 1);
  EXPECT_THAT(refusal(use), HasSubstr("uses a block that was freed"));

  Recorder many;
  many.trace.streams.assign(5000, 0);
  for (std::uint32_t i = 0; i < 5000; ++i) many.allocate(0x1000 + 64 * i, 1, i);
  EXPECT_THAT(refusal(many), HasSubstr("more than 1024 streams"));
}

}  // namespace
}  // namespace poolgrad
