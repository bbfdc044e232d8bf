// Limits of forward attention: sizes around tile boundaries, empty and huge sizes, extreme numbers, threads, memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <limits>

#include "allocator/caching_allocator.h"
#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(AttentionForwardLimits, SupportsEveryNumberOfQueriesAndKeys) {
  const std::int64_t sizes[] = {1, 5, 6, 7, 8, 15, 16, 17, 33, 47, 48, 49, 95, 96, 97, 193, 385};
  for (std::int64_t queries : sizes)
    for (std::int64_t keys : sizes)
      expect_definition(ForwardProblem(DType::f32, {1, queries, keys, 1, 1, 4, 5}).causal(keys - queries));
  for (std::int64_t n : sizes) expect_definition(ForwardProblem(DType::f64, {1, n, n, 1, 1, 4, 5}).causal());
}

TEST(AttentionForwardLimits, SupportsEveryHeadDimension) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (std::int64_t depth : {1, 3, 7, 8, 16, 17, 33, 64, 65, 128, 192, 300})
      for (std::int64_t v_depth : {depth, std::int64_t{9}})
        expect_definition(ForwardProblem(dtype, {1, 21, 40, 2, 1, depth, v_depth}).causal(19));
}

TEST(AttentionForwardLimits, AcceptsHeadsOfWidthZero) {
  for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const auto& [depth, v_depth] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 5}, {5, 0}})
      for (std::int64_t queries : {1, 40}) {
        ForwardProblem p(dtype, {2, queries, 50, 2, 1, depth, v_depth});
        p.causal(50 - queries).scores.scale = 1;
        expect_definition(p);
      }
}

// Mask edges at every place of a key tile and beyond. The tile, the register block and the lane each apply the mask.
TEST(AttentionForwardLimits, MasksEveryEdgeBeyondAKeyTile) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t offset = 0; offset <= 150; ++offset) {
      expect_definition(ForwardProblem(dtype, {1, 10, 290, 1, 1, 3, 3}).causal(offset), "causal");
      expect_definition(ForwardProblem(dtype, {1, 10, 290, 1, 1, 3, 3}).band(0, unbounded, offset), "from a key on");
      expect_definition(ForwardProblem(dtype, {1, 10, 290, 1, 1, 3, 3}).band(1, 140, offset), "between");
    }
}

TEST(AttentionForwardLimits, AcceptsEmptyQueriesHeadsAndKeys) {
  ForwardProblem no_keys(DType::f32, {2, 9, 0, 2, 1, 8, 8});
  no_keys.run();
  for (std::int64_t i = 0; i < no_keys.out->count(); ++i) EXPECT_EQ((*no_keys.out)[i], 0);
  for (std::int64_t i = 0; i < no_keys.lse->count(); ++i) EXPECT_EQ((*no_keys.lse)[i], -infinity);
  ForwardProblem(DType::f32, {2, 0, 9, 2, 1, 8, 8}).run();
  ForwardProblem(DType::f32, {0, 9, 9, 2, 1, 8, 8}).run();
  for (const std::int64_t queries : {1, 9}) ForwardProblem(DType::f32, {2, queries, 9, 0, 2, 8, 8}).run();
}

TEST(AttentionForwardLimits, GivesFullyMaskedRowsZerosDespiteNan) {
  ForwardProblem p(DType::f32, {1, 150, 150, 2, 1, 16, 16});
  p.band(unbounded, -30);
  for (std::int64_t i = 120 * 16; i < 150 * 16; ++i) {  // keys that no query sees
    p.k->set(i, std::nan(""));
    p.v->set(i, std::nan(""));
  }
  p.run();
  for (std::int64_t i = 0; i < p.out->count(); ++i) {
    ASSERT_TRUE(std::isfinite((*p.out)[i])) << i;
    if (i < 30 * 2 * 16) {
      ASSERT_EQ((*p.out)[i], 0);
    }
  }
  for (std::int64_t i = 0; i < 150; ++i) EXPECT_EQ((*p.lse)[i] == -infinity, i < 30);
}

TEST(AttentionForwardLimits, PropagatesANaNOnlyToQueriesThatSeeItsKey) {
  ForwardProblem p(DType::f32, {1, 140, 140, 1, 1, 8, 8});
  p.causal().k->set(20 * 8 + 3, std::nan(""));
  p.run();
  for (std::int64_t i = 0; i < 140; ++i) EXPECT_EQ(std::isnan((*p.out)[i * 8]), i >= 20) << i;
}

TEST(AttentionForwardLimits, SurvivesLargeScores) {
  for (DType dtype : {DType::f64, DType::f32}) {
    ForwardProblem p(dtype, {1, 64, 200, 1, 1, 16, 16});
    // Scores are multiples of 512 up to some ten thousands, exact in f32. The visible keys with the best score share
    // the weight.
    p.causal(136).scores.scale = 1;
    for (std::int64_t i = 0; i < p.q->count(); ++i) p.q->set(i, 32.0 * static_cast<double>(i % 7 - 3));
    for (std::int64_t i = 0; i < p.k->count(); ++i) p.k->set(i, 16.0 * static_cast<double>(i * i % 11 - 5));
    expect_definition(p);
    double largest = 0;
    for (std::int64_t i = 0; i < p.lse->count(); ++i) largest = std::max(largest, std::abs((*p.lse)[i]));
    EXPECT_GT(largest, 1e4);
  }
}

TEST(AttentionForwardLimits, CountsBiasesAndSinksOfEveryFiniteSize) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (std::int64_t queries : {2, 60})  // not packed, and packed
      for (bool sinks : {false, true}) {
        ForwardProblem p(dtype, {1, queries, 200, 2, 1, 16, 16});
        expect_definition(p.with_largest_biases(sinks), sinks ? "sinks" : "no sinks");
      }
}

TEST(AttentionForwardLimits, FollowsMaximaGrowingFromTileToTile) {
  // Odd queries see the largest scores first, even ones last.
  for (DType dtype : {DType::f64, DType::f32, DType::f16})
    for (double growth : {0.5, 11.0, 11.5, 100.0, 200.0})
      for (bool sinks : {false, true}) {
        ForwardProblem p(dtype, {1, 100, 400, 1, 1, 1, 8});
        p.causal(300);
        if (sinks) p.with_sinks();
        for (std::int64_t i = 0; i < 100; ++i) p.q->set(i, i % 2 == 0 ? 1 : -1);
        for (std::int64_t j = 0; j < 400; ++j) p.k->set(j, growth * static_cast<double>(j / 80));
        expect_definition(p);
      }
}

TEST(AttentionForwardLimits, GivesKeysOfScoreMinusInfinityZeroWeight) {
  ForwardProblem p(DType::f32, {1, 50, 60, 1, 1, 1, 8});
  for (std::int64_t i = 0; i < 50; ++i) p.q->set(i, 1 + 0.01 * static_cast<double>(i));
  for (std::int64_t j = 0; j < 60; j += 2) p.k->set(j, -infinity);
  p.counts([](std::int64_t, std::int64_t, std::int64_t j) { return j % 2 == 1 ? 1.0 : 0.0; });
  expect_definition(p);
}

TEST(AttentionForwardLimits, GivesConstantResultsForConstantValues) {
  ForwardProblem p(DType::f32, {1, 300, 300, 2, 2, 32, 32});
  p.band(100, 0).v->fill([](std::int64_t) { return 3.0; });
  p.run();
  for (std::int64_t i = 0; i < p.out->count(); ++i) ASSERT_NEAR((*p.out)[i], 3, 3e-6);
}

TEST(AttentionForwardLimits, SupportsOffsetsBeyond2To31) {
  // 40 rows, 2^26 elements apart; only the pages that hold rows are touched.
  constexpr std::int64_t rows = 40, stride = std::int64_t{1} << 26, depth = 4;
  const std::size_t bytes = static_cast<std::size_t>(rows * stride) * sizeof(float);
  const auto reserve = [&] {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  ForwardProblem p(DType::f32, {1, rows, rows, 1, 1, depth, depth});
  p.causal();
  View far[4] = {*p.q, *p.k, *p.v, *p.out};
  for (View& view : far) {
    const float* from = view.as<float>();
    view.data = reserve();
    if (view.data == MAP_FAILED) GTEST_SKIP() << "not that much address space";
    view.strides[1] = stride;
    for (std::int64_t i = 0; i < rows * depth; ++i) view.as<float>()[i / depth * stride + i % depth] = from[i];
  }
  attention_forward(Stream{cpu}, p.schedule, p.scores, far[0], far[1], far[2], far[3], *p.lse);
  for (std::int64_t i = 0; i < rows * depth; ++i) p.out->set(i, far[3].as<float>()[i / depth * stride + i % depth]);
  for (const View& view : far) munmap(view.data, bytes);
  expect_rows(*p.out, p.lse.get(), p.definition());
}

TEST(AttentionForwardLimits, IsBitEqualForEveryNumberOfThreads) {
  for (std::int64_t heads : {1, 2, 6}) {
    ForwardProblem p(DType::f32, {1, 533, 501, heads, heads == 6 ? 2 : 1, 40, 24});
    p.band(200, 20, 3).with_alibi();
    expect_same_bits_for_any_thread_count(*p.out, [&] { p.run(); });
    expect_same_bits_for_any_thread_count(*p.lse, [&] { p.run(); });
  }
}

TEST(AttentionForwardLimits, AllocatesOneWorkspaceAndNoScores) {
  ForwardProblem p(DType::f32, {1, 2048, 2048, 2, 2, 64, 64});
  p.causal();
  CachingAllocator& pool = allocator_for(cpu);
  const auto bytes = [&](Category category) {
    return pool.statistics().category_bytes[static_cast<std::size_t>(category)];
  };
  pool.reset_peaks();
  const auto before = bytes(Category::workspace);
  p.run();
  EXPECT_EQ(bytes(Category::workspace).current, before.current);
  EXPECT_GT(bytes(Category::workspace).peak, before.current);
  EXPECT_LT(bytes(Category::workspace).peak - before.current, static_cast<std::uint64_t>(num_threads()) * (512u << 10));
  EXPECT_EQ(bytes(Category::scores).peak, 0u);
  EXPECT_EQ(bytes(Category::weights).peak, 0u);
}

}  // namespace
}  // namespace poolgrad::kernels::testing
