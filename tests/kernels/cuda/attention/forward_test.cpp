// Forward attention on the emulated device: sizes, patterns and options of scores, compared with the definition.
#include <gtest/gtest.h>

#include <cstring>

#include "allocator/caching_allocator.h"
#include "tests/effort.h"
#include "tests/kernels/cuda/attention/operands.h"

namespace poolgrad::kernels::testing {
namespace {

using CudaAttentionForward = PortableAttention;

constexpr DType wide_dtypes[] = {DType::f64, DType::f32};
constexpr AttentionShape two_groups{2, 70, 83, 4, 2, 20, 12};

TEST_F(CudaAttentionForward, FollowsTheDefinitionForEverySize) {
  for (const DType dtype : floats) {
    for (const std::int64_t queries : {1, 64, 65})
      for (const std::int64_t keys : {1, 33, 130})
        expect_definition_there(ForwardProblem(dtype, {2, queries, keys, 3, 1, 24, 24}));
    for (const std::int64_t depth : {1, 32, 37, 64, 67, 150})
      for (const std::int64_t v_depth : {1, 64, 67, 128, 131})
        if (depth == 32 || v_depth == 64)
          expect_definition_there(ForwardProblem(dtype, {1, 40, 70, 2, 1, depth, v_depth}));
  }
}

TEST_F(CudaAttentionForward, AcceptsEmptyInputs) {
  for (const DType dtype : wide_dtypes) {
    expect_definition_there(ForwardProblem(dtype, {1, 5, 0, 2, 2, 8, 8}));
    expect_definition_there(ForwardProblem(dtype, {1, 0, 5, 2, 2, 8, 8}));
    expect_definition_there(ForwardProblem(dtype, {0, 5, 5, 2, 2, 8, 8}));
    expect_definition_there(ForwardProblem(dtype, {1, 5, 7, 2, 2, 0, 8}));
    expect_definition_there(ForwardProblem(dtype, {1, 5, 7, 2, 2, 8, 0}));
  }
}

TEST_F(CudaAttentionForward, SupportsBandsOfEveryWidthAndOffset) {
  const std::int64_t bands[][3] = {{unbounded, 0, 0}, {unbounded, 0, -40}, {16, 0, 0},         {0, 0, 0},
                                   {-10, 20, 0},      {30, unbounded, 7},  {unbounded, -3, 0}, {4, 4, 1000}};
  for (const DType dtype : wide_dtypes)
    for (const auto& [left, right, offset] : bands)
      expect_definition_there(ForwardProblem(dtype, {1, 200, 157, 2, 1, 16, 16}).band(left, right, offset),
                              std::to_string(left) + " " + std::to_string(right) + " " + std::to_string(offset));
}

TEST_F(CudaAttentionForward, FollowsEveryPattern) {
  for (const Named& pattern : some_of(patterns()))
    for (const bool causal : {false, true}) {
      const PositionMap few = PositionMap::contiguous(61), many = PositionMap::contiguous(140);
      expect_definition_there(of_pattern(DType::f64, pattern, few, few, causal), pattern.name);
      expect_definition_there(of_pattern(DType::f32, pattern, many, many, causal), pattern.name);
    }
}

TEST_F(CudaAttentionForward, FollowsEveryPatternOnShards) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const Named& pattern : some_of(patterns()))
    for (const PositionMap& queries : {zigzag, striped})
      for (const PositionMap& keys : {zigzag, striped})
        expect_definition_there(of_pattern(DType::f32, pattern, queries, keys, true), pattern.name);
}

TEST_F(CudaAttentionForward, FollowsListedBlocksAfterTheirDestruction) {
  std::optional<ForwardProblem> p;
  const DType dtype = DType::f32;
  {
    const ListedBlocks blocks;
    p.emplace(of_pattern(dtype, {"listed", {blocks.term()}, 1, 16}, PositionMap::contiguous(80),
                         PositionMap::contiguous(93), true));
    expect_definition_there(*p);
  }
}

TEST_F(CudaAttentionForward, KeepsDocumentsApart) {
  for (const bool causal : {false, true}) {
    ForwardProblem p(DType::f32, {1, 250, 250, 2, 2, 24, 8});
    if (causal) p.causal();
    p.with_documents(uneven_documents);
    expect_definition_there(p);
  }
}

TEST_F(CudaAttentionForward, KeepsDocumentsOfShardsApart) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3};
  for (const DType dtype : wide_dtypes)
    for (const auto& [queries, keys] : {std::pair{zigzag, striped}, {striped, zigzag}}) {
      ForwardProblem p = of_pattern(dtype, {"dense", {of_kind(Kind::all, 0)}}, queries, keys, true);
      p.with_documents(uneven_documents);
      expect_definition_there(p, "shards");
    }
}

TEST_F(CudaAttentionForward, ModifiesScores) {
  for (const DType dtype : wide_dtypes) {
    ForwardProblem capped(dtype, two_groups);
    capped.causal(13).scores.softcap = 0.7;
    capped.scores.scale = 1;  // scores far above the cap
    expect_definition_there(capped, "softcap");
    expect_definition_there(ForwardProblem(dtype, two_groups).band(40, 3, 9).with_alibi(), "alibi");
    ForwardProblem far(dtype, two_groups);  // positions that f32 does not hold exactly: only the distance counts
    far.schedule.queries = PositionMap::contiguous(70, 1'000'000'000'013);
    far.schedule.keys = PositionMap::contiguous(83, 1'000'000'000'000);
    expect_definition_there(far.with_alibi(), "far");
    for (const Shape& s : {Shape{2, 4, 70, 83}, Shape{1, 4, 70, 83}, Shape{2, 1, 1, 83}, Shape{1, 1, 1, 1}})
      for (const bool keys_adjacent : {true, false})
        expect_definition_there(ForwardProblem(dtype, two_groups).causal(20).with_bias(s, keys_adjacent), "bias");
    expect_definition_there(ForwardProblem(dtype, two_groups).causal(-20).with_sinks(), "sinks");
    ForwardProblem dropped(dtype, two_groups);
    dropped.causal(13).with_dropout(0.4).scores.first_batch = 3;
    expect_definition_there(dropped, "dropout");
    dropped.schedule.queries = {70, 30, 5, 4'000'000'000, 1};
    dropped.schedule.keys = {83, 41, 2, 20'000'000'003, 3};
    dropped.schedule.right = unbounded;
    dropped.multiplicity = every_pair;
    expect_definition_there(dropped, "dropout of shards");
  }
  for (const DType dtype : floats) {
    ForwardProblem p(dtype, {2, 83, 101, 4, 2, 33, 24});
    p.band(90, 5, 18).with_alibi().with_bias({1, 4, 83, 101}).with_sinks().with_dropout(0.1).scores.softcap = 2;
    expect_definition_there(p, "all at once");
  }
}

TEST_F(CudaAttentionForward, CountsBiasesAndSinksOfEveryFiniteSize) {
  for (const DType dtype : wide_dtypes)
    for (const bool sinks : {false, true})
      expect_definition_there(ForwardProblem(dtype, two_groups).with_largest_biases(sinks));
}

TEST_F(CudaAttentionForward, LeavesOutPairsWithABiasOfMinusInfinity) {
  ForwardProblem p(DType::f32, two_groups);
  p.with_bias({2, 4, 70, 83});
  for (std::int64_t i = 0; i < p.bias->count(); ++i)
    if (i % 3 || i / 83 % 70 == 5) p.bias->set(i, -infinity);
  expect_definition_there(p);
  EXPECT_EQ((*p.out)[5 * 4 * 12], 0);  // query 5 sees no key
  EXPECT_EQ((*p.lse)[5], -infinity);
}

TEST_F(CudaAttentionForward, IgnoresNanInUnseenKeys) {
  for (const DType dtype : wide_dtypes) {
    ForwardProblem p(dtype, {1, 100, 100, 2, 2, 16, 16});
    p.causal();
    run_there(p);
    const auto out = p.out->bytes(), lse = p.lse->bytes();
    const std::int64_t rows = 60 * 2 * 16;  // from key 60 on
    for (std::int64_t i = rows; i < p.k->count(); ++i) p.k->set(i, i % 2 ? nan : infinity), p.v->set(i, nan);
    run_there(p);
    const std::size_t element = size_of(dtype), begin = 64 * element, size = static_cast<std::size_t>(rows) * element;
    EXPECT_EQ(std::memcmp(p.out->bytes().data() + begin, out.data() + begin, size), 0) << "queries before key 60";
    EXPECT_EQ(std::memcmp(p.lse->bytes().data() + begin, lse.data() + begin, 60 * element), 0);
    EXPECT_TRUE(std::isnan((*p.out)[rows])) << "query 60";
  }
}

TEST_F(CudaAttentionForward, EqualsTheWholeOverSeveralSteps) {
  for (const DType dtype : floats)
    for (const std::int64_t v_depth : {20, 150}) {  // 150: columns span several items
      ForwardProblem p(dtype, {2, 75, 90, 4, 2, 20, v_depth});
      p.causal(10).with_sinks().with_alibi().with_dropout(0.2);
      if (compute_dtype(dtype) == dtype) p.with_bias({1, 4, 75, 90});
      run_in_parts_there(p, {{60, 90}, {0, 25}, {25, 25}, {25, 60}});
      expect_rows(*p.out, p.lse.get(), p.definition());
    }
}

TEST_F(CudaAttentionForward, KeepsEveryBitWithoutNewKeys) {
  ForwardProblem p(DType::f32, {2, 75, 90, 4, 2, 20, 20});
  p.causal(-30);
  run_there(p);
  const auto out = p.out->bytes(), lse = p.lse->bytes();
  p.schedule.keys = PositionMap::contiguous(90, 1000);
  const DeviceOperands there(p.q, p.k, p.v, p.out, p.lse);
  attention_forward(cuda0, p.schedule, p.scores, there(*p.q), there(*p.k), there(*p.v), there(*p.out), there(*p.lse),
                    there(*p.out), there(*p.lse));
  there.fetch();
  EXPECT_EQ(p.out->bytes(), out);
  EXPECT_EQ(p.lse->bytes(), lse);
}

TEST_F(CudaAttentionForward, MayOverwriteTheQueries) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t depth : {24, 150}) {
      ForwardProblem p(dtype, {1, 100, 130, 4, 2, depth, depth});
      p.causal();
      expect_same_out_over_the_queries(p);
    }
}

TEST_F(CudaAttentionForward, HasTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  ForwardProblem p(DType::f32, {2, 150, 150, 4, 2, 40, 40});
  p.causal().with_dropout(0.1);
  expect_same_bits_in_every_order(p);
}

TEST_F(CudaAttentionForward, HasTheSameBitsWithSeveralTilesPerBlock) {
  ForwardProblem p(DType::f32, {2, 150, 150, 4, 2, 40, 40});
  p.causal(-20).with_sinks().with_dropout(0.1);  // some queries see no key
  expect_same_rows_by_few_blocks(p);
  ForwardProblem wide(DType::f64, {1, 70, 83, 4, 2, 20, 80});  // columns span several items
  wide.causal().with_bias({1, 4, 70, 83});
  expect_same_rows_by_few_blocks(wide);
}

/// Number of programs copied by a call, and by the call after it.
std::pair<std::uint64_t, std::uint64_t> copies_of_two_calls(const ForwardProblem& p) {
  const DeviceOperands there(p.q, p.k, p.v, p.out, p.lse);
  const auto requests = [&] {
    CachingAllocator& pool = allocator_for(cuda0.device);
    const std::uint64_t before = pool.statistics().requests;
    attention_forward(cuda0, p.schedule, p.scores, there(*p.q), there(*p.k), there(*p.v), there(*p.out), there(*p.lse));
    return pool.statistics().requests - before;
  };
  const std::uint64_t first = requests();
  return {first, requests()};
}

TEST_F(CudaAttentionForward, CopiesItsProgramOnce) {
  using Copies = std::pair<std::uint64_t, std::uint64_t>;
  ForwardProblem p(DType::f32, {1, 300, 300, 2, 2, 16, 16});
  EXPECT_EQ(copies_of_two_calls(p.band(77, 0)), (Copies{1, 0}));
}

TEST_F(CudaAttentionForward, CopiesIdentifiedListsAndDocumentsOnce) {
  using Copies = std::pair<std::uint64_t, std::uint64_t>;
  const ListIdentity identity, other;
  ForwardProblem documents(DType::f32, {1, 250, 250, 2, 2, 16, 16});
  documents.causal().with_documents(uneven_documents);
  EXPECT_EQ(copies_of_two_calls(documents), (Copies{1, 1})) << "they may have changed";
  documents.schedule.documents_identity = identity.number();
  EXPECT_EQ(copies_of_two_calls(documents), (Copies{1, 0}));
  expect_definition_there(documents, "kept");
  // The same arrays with other documents: cached programs must not serve this call.
  std::vector<std::int64_t> bounds = uneven_documents;
  documents.schedule.documents = bounds.data();
  bounds = {0, 9, 80, 120, 200, 250};
  documents.schedule.documents_identity = other.number();
  documents.multiplicity = every_pair;
  documents.causal().with_documents(bounds);
  EXPECT_EQ(copies_of_two_calls(documents), (Copies{1, 0}));
  expect_definition_there(documents, "other documents");

  const ListedBlocks blocks;
  const PositionMap queries = PositionMap::contiguous(80), keys = PositionMap::contiguous(93);
  ForwardProblem lists = of_pattern(DType::f32, {"listed", {blocks.term()}, 1, 16}, queries, keys, true);
  EXPECT_EQ(copies_of_two_calls(lists), (Copies{1, 1}));
  lists.schedule.term[0].lists_identity = identity.number();
  EXPECT_EQ(copies_of_two_calls(lists), (Copies{1, 0}));
  expect_definition_there(lists, "kept");
}

TEST_F(CudaAttentionForward, CopiesProgramsAgainAfterATrim) {
  using Copies = std::pair<std::uint64_t, std::uint64_t>;
  ForwardProblem p(DType::f32, {1, 300, 300, 2, 2, 16, 16});
  p.band(78, 0);
  EXPECT_EQ(copies_of_two_calls(p), (Copies{1, 0}));
  allocator_for(cuda0.device).trim();
  EXPECT_EQ(copies_of_two_calls(p), (Copies{1, 0}));
  expect_definition_there(p);
}

}  // namespace
}  // namespace poolgrad::kernels::testing
