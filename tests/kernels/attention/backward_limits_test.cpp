// Limits of backward attention: rows without keys, no outputs requested, dtypes, threads, scratch.
#include <sys/mman.h>

#include "allocator/caching_allocator.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/parallel.h"
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

TEST(AttentionBackwardLimits, AcceptsEmptySequences) {
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 0}, {0, 0}})
    expect_definition(banded(queries, keys, unbounded, unbounded));
  BackwardExample e = causal(4);
  e.batch = 0;
  expect_definition(e);
}

TEST(AttentionBackwardLimits, GivesZeroGradientsWithoutQueryHeads) {
  BackwardExample e = causal(5);
  e.q_heads = e.schedule.heads = 0;
  expect_definition(e);
  const BackwardCheck check(e, DType::f32);
  BackwardCheck::Result sum(e, DType::f32);
  for (std::int64_t i = 0; i < sum.dk.count(); ++i) sum.dk.set(i, 2.0), sum.dv.set(i, 3.0);
  check.run(e.schedule, sum.views(true));  // adds to the existing gradients
  for (std::int64_t i = 0; i < sum.dk.count(); ++i) {
    ASSERT_EQ(sum.dk[i], 2.0);
    ASSERT_EQ(sum.dv[i], 3.0);
  }
}

TEST(AttentionBackwardLimits, AcceptsHeadsOfWidthZero) {
  for (const auto& [depth, v_depth] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 5}, {5, 0}}) {
    BackwardExample e = causal(50);
    e.depth = depth;
    e.v_depth = v_depth;
    expect_definition(e);
    for (const DType dtype : {DType::f16, DType::bf16}) BackwardCheck(e, dtype).run();
  }
}

TEST(AttentionBackwardLimits, MasksEdgesBeyondAKeyTile) {
  for (std::int64_t offset = 0; offset <= 210; offset += 3) {
    BackwardExample e = banded(PositionMap::contiguous(30, offset), PositionMap::contiguous(260), 3, 190);
    e.depth = e.v_depth = 3;
    e.q_heads = e.kv_heads = 1;
    expect_definition(e);
  }
}

TEST(AttentionBackwardLimits, IgnoresNanInRowsOfFullyMaskedQueries) {
  BackwardExample e = banded(90, 60, unbounded, 0);  // the first 30 queries precede every key
  BackwardCheck check(e, DType::f32);
  for (std::int64_t i = 0; i < 30 * e.q_heads * e.v_depth; ++i)
    check.grad_out.set(i, std::numeric_limits<double>::quiet_NaN());
  check.expect(*check.run(), 2e-5);
}

TEST(AttentionBackwardLimits, SkipsAQueryWithLseOfMinusInfinity) {
  BackwardExample e = causal(60);
  e.alone = {0, 7, 31, 59};
  expect_definition(e);
}

TEST(AttentionBackwardLimits, UsesOnlyTheLseGradientWithoutAnOutGradient) {
  BackwardExample e = causal(100);
  BackwardCheck zero(e, DType::f64);
  for (std::int64_t i = 0; i < zero.grad_out.count(); ++i) zero.grad_out.set(i, 0.0);
  zero.delta.fill([&](std::int64_t i) { return -zero.grad_lse[i]; });
  const auto expected = zero.run();
  for (std::int64_t i = 0; i < zero.v.count(); ++i)
    zero.v.set(i, i % 2 ? std::numeric_limits<double>::infinity() : NAN);
  BackwardCheck::Result actual(e, DType::f64);
  attention_backward({}, e.schedule, zero.scores, zero.q.view(), zero.k.view(), zero.v.view(), zero.lse, zero.delta, {},
                     actual.views());
  EXPECT_EQ(actual.dq.bytes(), expected->dq.bytes());
  EXPECT_EQ(actual.dk.bytes(), expected->dk.bytes());
  for (std::int64_t i = 0; i < actual.dv.count(); ++i) ASSERT_EQ(actual.dv[i], 0.0);
}

TEST(AttentionBackwardLimits, EachGradientIsOptional) {
  const BackwardCheck check(causal(120), DType::f32);
  const auto all = check.run();
  for (int wanted = 0; wanted < 8; ++wanted) {
    BackwardCheck::Result some(check.e, DType::f32);
    AttentionGradients views = some.views();
    if (!(wanted & 1)) views.dq = {};
    if (!(wanted & 2)) views.dk = {};
    if (!(wanted & 4)) views.dv = {};
    check.run(check.e.schedule, views);
    const BackwardCheck::Result untouched(check.e, DType::f32);
    EXPECT_EQ(some.dq.bytes(), (wanted & 1 ? all->dq : untouched.dq).bytes()) << wanted;
    EXPECT_EQ(some.dk.bytes(), (wanted & 2 ? all->dk : untouched.dk).bytes()) << wanted;
    EXPECT_EQ(some.dv.bytes(), (wanted & 4 ? all->dv : untouched.dv).bytes()) << wanted;
  }
}

TEST(AttentionBackwardLimits, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::int64_t depth : {8, 9}) {  // dq is summed in place, and in scratch
      BackwardExample e = dtype == DType::bf16 ? banded(331, 331, 20, 5) : causal(331);
      e.q_heads = e.schedule.heads = 3;
      e.kv_heads = 3;
      e.depth = depth;
      const BackwardCheck check(e, dtype);
      expect_equal_bits(check, {2, 3, 5});
    }
  }
}

TEST(AttentionBackwardLimits, WritesHalfGradientsInTheComputeType) {
  const BackwardExample e = causal(90);
  const BackwardCheck check(e, DType::f16);
  BackwardCheck::Result sum(e, DType::f32);
  check.run(e.schedule, sum.views());
  check.expect(sum, 2e-5);
  check.run(e.schedule, sum.views(true));
  for (std::int64_t i = 0; i < sum.dq.count(); ++i)
    ASSERT_NEAR(sum.dq[i], 2 * check.expected.dq[static_cast<std::size_t>(i)], 1e-4) << "seed " << test_seed();
}

/// ||actual - expected|| / ||expected||.
double relative_error(const RowsArray& actual, const Numbers& expected) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < actual.count(); ++i) {
    const double wanted = expected[static_cast<std::size_t>(i)];
    difference += (actual[i] - wanted) * (actual[i] - wanted);
    norm += wanted * wanted;
  }
  return std::sqrt(difference / norm);
}

TEST(AttentionBackwardLimits, RoundsOnlyResultsAndWeightsToHalfTypes) {
  // CPUs with bf16 products round the weights too.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    BackwardExample e = causal(130);
    e.depth = e.v_depth = 33;
    const BackwardCheck check(e, dtype);
    const auto result = check.run();
    const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    EXPECT_LE(relative_error(result->dq, check.expected.dq), unit) << "seed " << test_seed();
    EXPECT_LE(relative_error(result->dk, check.expected.dk), unit) << "seed " << test_seed();
    EXPECT_LE(relative_error(result->dv, check.expected.dv), unit) << "seed " << test_seed();
  }
}

TEST(AttentionBackwardLimits, IgnoresNanInUnseenKeys) {
  // Rows of queries without keys hold NaN, and so does their gradient of lse.
  const std::int64_t n = 150;
  BackwardExample e = banded(n, n, unbounded, -30);
  BackwardCheck check(e, DType::f32);
  for (RowsArray* x : {&check.k, &check.v})
    for (std::int64_t i = (n - 30) * e.kv_heads * 8; i < x->count(); ++i)
      x->set(i, std::numeric_limits<double>::quiet_NaN());
  for (std::int64_t h = 0; h < e.q_heads; ++h)
    for (std::int64_t i = 0; i < 30; ++i) check.delta.set(h * n + i, std::numeric_limits<double>::quiet_NaN());
  check.expect(*check.run(), 2e-5);
}

TEST(AttentionBackwardLimits, AcceptsAFullyMaskedCall) {
  for (const std::int64_t depth : {8, 9}) {
    BackwardExample e = banded(200, 200, -300, 400);
    e.depth = depth;
    expect_definition(e);
  }
}

TEST(AttentionBackwardLimits, SurvivesLargeScores) {
  BackwardExample e = causal(64);
  e.depth = 4;
  e.sharpness = 300;
  expect_definition(e, 1e-10, 1e-2);
}

TEST(AttentionBackwardLimits, CountsBiasesAndSinksOfEveryFiniteSize) {
  expect_definition(with_largest_biases(causal(130)));
}

// In f32 the lse of such a query cannot represent the number of keys that share the weight. Nothing may overflow.
TEST(AttentionBackwardLimits, DoesNotOverflowUnderHugeBiases) {
  for (const DType dtype : {DType::f32, DType::bf16})
    expect_no_overflow_of_huge_biases(causal(130), dtype, [](const BackwardCheck& check) { return check.run(); });
}

TEST(AttentionBackwardLimits, SupportsOffsetsBeyond2To31) {
  // 40 rows, 2^26 elements apart; only the pages that hold rows are touched.
  constexpr std::int64_t rows = 40, stride = std::int64_t{1} << 26, depth = 8;
  constexpr std::size_t bytes = static_cast<std::size_t>(rows * stride) * sizeof(float);
  BackwardExample e = causal(rows);
  e.q_heads = e.kv_heads = e.schedule.heads = 1;
  const BackwardCheck check(e, DType::f32);
  BackwardCheck::Result result(e, DType::f32);
  View far[] = {check.q.view(),   check.k.view(),   check.v.view(),  check.grad_out.view(),
                result.dq.view(), result.dk.view(), result.dv.view()};
  const View near[] = {far[0], far[1], far[2], far[3], far[4], far[5], far[6]};
  const auto at = [](const View& view, std::int64_t i) -> float& {
    return view.as<float>()[i / depth * view.strides[1] + i % depth];
  };
  for (std::size_t n = 0; n < 7; ++n) {
    far[n].data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far[n].data == MAP_FAILED) GTEST_SKIP() << "not that much address space";
    far[n].strides[1] = stride;
    for (std::int64_t i = 0; i < rows * depth; ++i) at(far[n], i) = at(near[n], i);
  }
  attention_backward({}, e.schedule, check.scores, far[0], far[1], far[2], check.lse, check.delta, far[3],
                     {far[4], far[5], far[6], {}, false});
  for (std::size_t n = 4; n < 7; ++n)
    for (std::int64_t i = 0; i < rows * depth; ++i) at(near[n], i) = at(far[n], i);
  for (const View& view : far) munmap(view.data, bytes);
  check.expect(result, 2e-5);
}

struct WorkspaceUse {
  std::uint64_t peak, allocations;
};
WorkspaceUse workspace_of(const BackwardExample& e, DType dtype) {
  RowsArray q(dtype, 1, e.queries(), e.q_heads, e.depth), k(dtype, 1, e.keys(), e.kv_heads, e.depth);
  for (RowsArray* x : {&q, &k})
    for (std::int64_t i = 0; i < x->count(); ++i) x->set(i, 0.01 * static_cast<double>(i % 17));
  RowsArray dq(dtype, 1, e.queries(), e.q_heads, e.depth), dk(dtype, 1, e.keys(), e.kv_heads, e.depth),
      dv(dtype, 1, e.keys(), e.kv_heads, e.depth);
  TestArray rows(compute_dtype(dtype), {1, e.q_heads, e.queries()});
  rows.fill([](std::int64_t) { return 3.0; });
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const auto before = pool.statistics();
  attention_backward({}, e.schedule, {}, q.view(), k.view(), k.view(), rows, rows, q.view(),
                     {dq.view(), dk.view(), dv.view(), {}, false});
  const auto after = pool.statistics();
  const auto workspace = static_cast<std::size_t>(Category::workspace);
  EXPECT_EQ(after.category_bytes[workspace].current, before.category_bytes[workspace].current);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::scores)].peak, 0u);
  EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(Category::weights)].peak, 0u);
  return {after.category_bytes[workspace].peak - before.category_bytes[workspace].current,
          after.requests - before.requests};
}

TEST(AttentionBackwardLimits, GrowsOnlyThePlanWithTheLength) {
  const int before = num_threads();
  for (const int threads : {1, 2, 3})  // 1: whole heads; 2 and 3: ranges of queries
    for (const DType dtype : {DType::f32, DType::bf16}) {
      set_num_threads(threads);
      BackwardExample e = banded(8000, 8000, 63, 0);
      e.depth = e.v_depth = 16;
      const WorkspaceUse small = workspace_of(e, dtype);
      e.schedule.queries = e.schedule.keys = PositionMap::contiguous(16000);
      const WorkspaceUse large = workspace_of(e, dtype);
      EXPECT_LE(small.allocations, 3u);  // two of them for the plan
      EXPECT_EQ(large.allocations, small.allocations);
      // The plan takes less than one byte for each key and head.
      EXPECT_LE(large.peak, small.peak + 8000u * static_cast<std::uint64_t>(e.q_heads)) << threads << " threads";
      EXPECT_LT(large.peak, static_cast<std::uint64_t>(threads) * (1u << 20));
    }
  set_num_threads(before);
}

TEST(AttentionBackwardLimits, OnlyAdvancesTheClockOnASimulatedDevice) {
  const Stream sim{{DeviceType::sim, 0}, 0};
  const BackwardExample e = causal(100);
  const BackwardCheck check(e, DType::f32);
  const BackwardCheck::Result untouched(e, DType::f32), result(e, DType::f32);
  TestArray delta(DType::f32, {1, e.q_heads, 100});
  const auto start = device_clock(sim.device);
  attention_delta(sim, check.grad_out.view(), check.grad_out.view(), {}, delta);
  const auto middle = device_clock(sim.device);
  attention_backward(sim, e.schedule, check.scores, check.q.view(), check.k.view(), check.v.view(), check.lse, delta,
                     check.grad_out.view(), result.views());
  EXPECT_GT(middle, start);
  EXPECT_GT(device_clock(sim.device), middle);
  EXPECT_TRUE(std::isnan(delta[0]));
  EXPECT_EQ(result.dq.bytes(), untouched.dq.bytes());
  EXPECT_EQ(result.dk.bytes(), untouched.dk.bytes());
}

}  // namespace
}  // namespace poolgrad::kernels
