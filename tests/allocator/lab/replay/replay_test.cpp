// The measuring loop, the smallest capacity, and the policies that do not model other allocators.
#include "allocator/lab/replay/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/replay/policy.h"
#include "allocator/lab/replay/workload.h"

namespace poolgrad {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t page = ModelDevice::page;

/// Three steps of two blocks each, 5 MiB at once.
Workload steps() {
  WorkloadBuilder out(1000);
  out.allocate(1 * MiB, Category::parameter);
  for (int step = 0; step < 3; ++step) {
    out.step();
    const auto a = out.allocate(3 * MiB, Category::activation);
    const auto b = out.allocate(1 * MiB, Category::activation);
    out.free(a);
    out.free(b);
  }
  return out.take("steps", "three steps");
}

Workload on_two_streams() {
  WorkloadBuilder out;
  const auto a = out.allocate(8 * MiB, Category::activation, 0);
  out.use(a, 1);
  out.free(a, 0);
  const auto b = out.allocate(8 * MiB, Category::activation, 1);
  out.order(0, 1);
  out.free(b);
  out.free(out.allocate(8 * MiB, Category::activation, 0));
  return out.take("two", "streams");
}

TEST(Replay, MeasuresPeaksAndCountsOperations) {
  const ReplayResult result = replay(steps(), policy_named("lower-bound"));
  EXPECT_EQ(result.policy, "lower-bound");
  EXPECT_EQ(result.workload, "steps");
  EXPECT_EQ(result.peak_requested, 5 * MiB);
  EXPECT_EQ(result.peak_reserved, 5 * MiB);
  EXPECT_EQ(result.lower_bound, 6 * MiB) << "in whole pages";
  EXPECT_EQ(result.operations, 16u);
  EXPECT_FALSE(result.out_of_memory);
  EXPECT_DOUBLE_EQ(result.utilisation(), 1.0);
}

TEST(Replay, CountsTheRoundingOfAPolicyAsWaste) {
  // Bins of 512 bytes x 8^i: 300 KiB take 2 MiB each.
  WorkloadBuilder out;
  for (int i = 0; i < 50; ++i) out.allocate(300 << 10, Category::activation);
  const Workload workload = out.take("rounded", "");
  const ReplayResult cub = replay(workload, policy_named("cub"));
  EXPECT_EQ(cub.peak_active, cub.peak_reserved);
  EXPECT_DOUBLE_EQ(cub.utilisation(), 16.0 / 100.0);
  EXPECT_DOUBLE_EQ(replay(workload, policy_named("poolgrad")).utilisation(), 1.0) << "but whole pages are the device's";
}

TEST(Replay, CountsTheRoundingOfThePool) {
  WorkloadBuilder out;
  for (std::uint64_t i = 0; i < 100; ++i) out.allocate(i, Category::activation);
  const Workload workload = out.take("small", "");
  const auto peak = [&](const char* policy) { return replay(workload, policy_named(policy)).peak_active; };
  const PolicyEntry mapped = {
      .name = "mapped", .description = "each by itself", .make = [](const PolicyContext& context) {
        return make_poolgrad(context, {.mode = AllocatorMode::none});
      }};
  EXPECT_EQ(peak("poolgrad"), (65 + 2 * 35) * 64u);
  EXPECT_EQ(peak("poolgrad:alignment=16"), peak("poolgrad")) << "it is asked for blocks that are aligned to 64 bytes";
  EXPECT_EQ(peak("poolgrad:alignment=4096"), 100 * 4096u);
  EXPECT_EQ(replay(workload, mapped).peak_active, 100 * page);
}

TEST(Replay, CountsThePoolsBytesForStrictAlignments) {
  WorkloadBuilder out;
  for (std::uint64_t i = 0; i < 100; ++i) out.allocate(i, Category::activation);
  Workload workload = out.take("aligned", "");
  for (Operation& operation : workload.operations) operation.alignment = 10;
  std::size_t expected = 0;
  for (std::size_t i = 0; i < 100; ++i) expected += i < 16 ? 16 : (i + 15) / 16 * 16;
  const auto peak = [&] { return replay(workload, policy_named("poolgrad:alignment=16")).peak_active; };
  EXPECT_EQ(peak(), expected);
  workload.streams = 2;
  EXPECT_EQ(peak(), expected) << "where the pool itself is asked";
}

TEST(Replay, CountsPendingBlocksOfThePool) {
  WorkloadBuilder out;
  const auto a = out.allocate(8 * MiB, Category::activation, 0);
  out.use(a, 1);
  out.free(a, 0);
  out.allocate(16 * MiB, Category::activation, 0);
  const Workload workload = out.take("two", "streams");
  for (const char* policy : {"poolgrad", "pytorch"})
    EXPECT_EQ(replay(workload, policy_named(policy)).peak_active, 24 * MiB) << policy;
}

TEST(Replay, HasFullUtilisationWithoutOperations) {
  for (const PolicyEntry& policy : policies()) {
    const ReplayResult result = replay(Workload{}, policy);
    EXPECT_EQ(result.operations, 0u);
    EXPECT_EQ(result.peak_active, 0u) << policy.name;
  }
  EXPECT_DOUBLE_EQ(ReplayResult{}.utilisation(), 1.0);
}

TEST(Replay, EndsAtTheFirstFailureAndNamesItsStep) {
  WorkloadBuilder out;
  for (int step = 0; step < 4; ++step) {
    out.step();
    out.allocate(4 * MiB, Category::activation);
  }
  const Workload workload = out.take("growing", "");
  for (const PolicyEntry& policy : policies()) {
    if (policy.name == "planned") continue;  // fails at once: it takes the whole capacity
    const ReplayResult result = replay(workload, policy, {.capacity = 8 * MiB});
    ASSERT_TRUE(result.out_of_memory) << policy.name;
    EXPECT_LE(*result.out_of_memory, 5u);
    EXPECT_EQ(*result.out_of_memory % 2, 1u);
    EXPECT_EQ(*result.out_of_memory_step, *result.out_of_memory / 2);
    EXPECT_EQ(result.operations, *result.out_of_memory);
    EXPECT_LE(result.peak_reserved, 8 * MiB);
  }
}

TEST(Replay, RepeatsItselfAndStaysWithinTheCapacity) {
  const Workload workload = on_two_streams();
  for (const PolicyEntry& policy : policies()) {
    const ReplayResult first = replay(workload, policy, {.capacity = 64 * MiB});
    const ReplayResult second = replay(workload, policy, {.capacity = 64 * MiB});
    EXPECT_EQ(first.peak_reserved, second.peak_reserved) << policy.name;
    EXPECT_EQ(first.modelled_ns, second.modelled_ns) << policy.name;
    EXPECT_EQ(first.counters.events, second.counters.events) << policy.name;
    EXPECT_LE(first.peak_reserved, 64 * MiB) << policy.name;
    EXPECT_GE(first.peak_reserved, first.peak_requested) << policy.name;
    EXPECT_LE(first.peak_active, first.peak_reserved) << policy.name;
  }
}

TEST(Replay, CountsTheDeviceCallsOfThePool) {
  const ReplayResult unit = replay(steps(), policy_named("poolgrad"));
  EXPECT_GT(unit.counters.allocations, 0u);
  EXPECT_EQ(unit.counters.events, 0u) << "one stream needs none";
  EXPECT_GT(unit.modelled_ns, 0.0);
  const LatencyTable slow = LatencyTable::named("h200");
  EXPECT_NE(replay(steps(), policy_named("poolgrad"), {.latency = &slow}).modelled_ns, unit.modelled_ns);
}

Workload a_large_block_and_half_of_it() {
  WorkloadBuilder out;
  out.free(out.allocate(64 * MiB, Category::activation));
  out.free(out.allocate(30 * MiB, Category::activation));
  return out.take("halves", "");
}

TEST(PolicyParameters, ChangeThePolicy) {
  const Workload workload = a_large_block_and_half_of_it();
  const auto reserved = [&](const char* policy) { return replay(workload, policy_named(policy)).peak_reserved; };
  EXPECT_EQ(reserved("pytorch"), 64 * MiB);
  EXPECT_EQ(reserved("pytorch:max_split=20MiB"), 94 * MiB) << "not split, and 34 MiB larger than the request";
  EXPECT_EQ(reserved("pytorch:max_split=20MiB,max_non_split_rounding=40MiB"), 64 * MiB);
  EXPECT_EQ(reserved("pytorch:max_split=100MiB"), 64 * MiB);
  EXPECT_EQ(policy_named("pytorch:max_split=20MiB").name, "pytorch:max_split=20MiB");
  EXPECT_EQ(reserved("pytorch"), 64 * MiB) << "and of that one alone";
}

TEST(PolicyParameters, LetPytorchFreeOneLargeBlockBeforeItsCache) {
  WorkloadBuilder out;
  const auto small = out.allocate(12 * MiB, Category::activation);
  const auto large = out.allocate(64 * MiB, Category::activation);
  out.free(small);
  out.free(large);
  out.free(out.allocate(30 * MiB, Category::activation));
  const Workload workload = out.take("cache", "");
  const ReplayOptions tight{.capacity = 90 * MiB};
  EXPECT_EQ(replay(workload, policy_named("pytorch:max_split=20MiB"), tight).counters.frees, 1u);
  EXPECT_FALSE(replay(workload, policy_named("pytorch:max_split=20MiB"), tight).out_of_memory);
}

TEST(PolicyParameters, ConfigureThePool) {
  // Scattered pages, and a block that needs them stitched.
  WorkloadBuilder out;
  std::vector<std::uint32_t> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(out.allocate(4 * MiB, Category::activation));
  for (std::size_t i = 0; i < 64; i += 2) out.free(blocks[i]);
  out.allocate(128 * MiB, Category::activation);
  const Workload workload = out.take("comb", "");
  EXPECT_EQ(replay(workload, policy_named("poolgrad:stitch_idle=on")).peak_reserved, 256 * MiB);
  EXPECT_EQ(replay(workload, policy_named("poolgrad")).peak_reserved, 384 * MiB);
}

TEST(PolicyParameters, ReportTheirAllowedValues) {
  const auto needs = [](std::string_view policy, std::string_view parameter, std::string_view value) -> std::string {
    std::ostringstream text;
    text << policy << ":" << parameter << "=" << value;
    std::ostringstream begin, end;
    begin << "[policy] " << policy << ": " << parameter << " must be ";
    end << ", got '" << value << "'";
    try {
      policy_named(text.str());
    } catch (const ValueError& error) {
      const std::string what = error.what();
      EXPECT_THAT(what, ::testing::AllOf(::testing::StartsWith(begin.str()), ::testing::EndsWith(end.str())));
      return what.substr(begin.str().size(), what.size() - begin.str().size() - end.str().size());
    }
    return "";
  };
  for (const char* value : {"0", "1", "1.5", "-0.5", "nan", "half", "0.5x", ""}) {
    EXPECT_EQ(needs("pytorch", "garbage_collection_threshold", value), "above 0 and below 1") << value;
  }
  EXPECT_EQ(needs("pytorch", "roundup_power2_divisions", "3"), "a power of two up to 1048576");
  EXPECT_EQ(needs("pytorch", "roundup_power2_divisions", "36028797018963968"), "a power of two up to 1048576");
  EXPECT_EQ(needs("pytorch", "roundup_power2_divisions", "0"), "a number from 1");
  EXPECT_EQ(needs("pytorch", "roundup_power2_divisions", "4k"), "a number from 1");
  EXPECT_EQ(needs("pytorch", "large_segment", "9MiB"), "a multiple of 2.00 MiB");
  EXPECT_EQ(needs("pytorch", "large_segment", "8MiB"), "at least 10 MiB");
  EXPECT_EQ(needs("pytorch-expandable", "large_segment", "0"), "at least 2 MiB");
  EXPECT_EQ(needs("cuda-async", "opportunistic", "1"), "on or off");
  EXPECT_EQ(needs("rmm-pool", "maximum_size", "1"), "a multiple of 2.00 MiB");
  EXPECT_EQ(needs("rmm-binning", "smallest_bin", "3MiB"), "a power of two from 256 bytes to 1 GiB");
  EXPECT_EQ(needs("rmm-binning", "largest_bin", "128KiB"), "at least the smallest");
  EXPECT_EQ(needs("rmm-binning", "blocks", "100000"), "at most 65536");
  EXPECT_EQ(needs("gmlake", "reuse_limit", "-1"), "a number from 1");
}

TEST(PolicyParameters, ListTheKnownNamesForAnUnknownOne) {
  const auto refusal = [](const char* text) -> std::string {
    try {
      policy_named(text);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("pytorch:max_spilt=20MiB"),
            "[policy] unknown parameter 'max_spilt' of pytorch; known parameters: max_split, max_non_split_rounding, "
            "garbage_collection_threshold, roundup_power2_divisions, large_segment");
  EXPECT_EQ(refusal("planned:size=1"), "[policy] unknown parameter 'size' of planned; known parameters: none");
  EXPECT_EQ(refusal("cub:max_cached"), "[policy] parameter 'max_cached' of cub has no value: write max_cached=...");
  EXPECT_EQ(refusal("cub:max_cached=much"),
            "[policy] cub: max_cached must be a number of bytes, such as 20MiB, got 'much'");
  EXPECT_THAT(refusal("poolgrad:stitch=perhaps"), ::testing::HasSubstr("stitch must be on or off"));
  EXPECT_THAT(refusal("pytroch:max_split=1"), ::testing::HasSubstr("unknown policy 'pytroch'"));
}

TEST(SmallestCapacity, SufficesAndOnePageLessDoesNot) {
  const Workload workload = steps();
  for (const PolicyEntry& policy : policies()) {
    const std::optional<std::size_t> found = smallest_capacity(workload, policy);
    ASSERT_TRUE(found) << policy.name;
    const std::size_t capacity = *found;
    EXPECT_EQ(capacity % page, 0u);
    EXPECT_GE(capacity, workload.lower_bound());
    EXPECT_FALSE(replay(workload, policy, {.capacity = capacity}).out_of_memory) << policy.name;
    if (capacity - page >= workload.lower_bound()) {
      EXPECT_TRUE(replay(workload, policy, {.capacity = capacity - page}).out_of_memory) << policy.name;
    }
  }
}

TEST(SmallestCapacity, IsNoneForAPolicyWithItsOwnLimit) {
  EXPECT_EQ(smallest_capacity(steps(), policy_named("rmm-pool:maximum_size=2MiB")), std::nullopt);
}

TEST(SmallestCapacity, IsZeroWithoutOperations) {
  EXPECT_EQ(smallest_capacity(Workload{}, policy_named("lower-bound")), 0u);
}

TEST(Planned, WaitsBeforeABlockTakesBytesOfAnotherStream) {
  WorkloadBuilder out;
  out.free(out.allocate(8 * MiB, Category::activation, 0));
  out.free(out.allocate(8 * MiB, Category::activation, 1));
  out.free(out.allocate(8 * MiB, Category::activation, 1));
  const ReplayResult result = replay(out.take("hand over", ""), policy_named("planned"));
  EXPECT_EQ(result.peak_reserved, 8 * MiB);
  EXPECT_EQ(result.counters.waits, 1u);
  EXPECT_EQ(result.counters.allocations, 1u);
}

TEST(Planned, WaitsForStreamsThatUsedOrFreedABlock) {
  const auto waits_after = [](bool used) {
    Workload workload;
    workload.operations = {{.bytes = 8 * MiB, .block = 0, .kind = OperationKind::allocate}};
    if (used) workload.operations.push_back({.bytes = 8 * MiB, .block = 0, .stream = 1, .kind = OperationKind::use});
    const std::uint16_t freeing = used ? 0 : 1;
    workload.operations.push_back({.bytes = 8 * MiB, .block = 0, .stream = freeing, .kind = OperationKind::free});
    workload.operations.push_back({.bytes = 8 * MiB, .block = 1, .kind = OperationKind::allocate});
    workload.blocks = 2;
    workload.streams = 2;
    return replay(workload, policy_named("planned")).counters.waits;
  };
  EXPECT_EQ(waits_after(true), 1u) << "used by stream 1";
  EXPECT_EQ(waits_after(false), 1u) << "freed on stream 1";
  // One event covers all earlier work of a stream.
  WorkloadBuilder out;
  const std::uint32_t parts[] = {out.allocate(100, Category::activation, 1),
                                 out.allocate(100, Category::activation, 1)};
  for (const std::uint32_t part : parts) out.free(part);
  out.free(out.allocate(400, Category::activation, 0));
  EXPECT_EQ(replay(out.take("parts", ""), policy_named("planned")).counters.waits, 1u);
}

TEST(Policies, AreKnownByName) {
  EXPECT_EQ(policies().size(), 13u);
  EXPECT_TRUE(policy_named("poolgrad").online);
  EXPECT_FALSE(policy_named("planned").online);
  try {
    policy_named("magic");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("unknown policy 'magic'; known policies: pytorch, "));
  }
}

}  // namespace
}  // namespace poolgrad
