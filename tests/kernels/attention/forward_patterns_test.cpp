// Visited keys of bands, documents, shards and every kind of term, compared with a definition in this file.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/kernels/attention/forward_problem.h"

namespace poolgrad::kernels::testing {
namespace {

using Kind = AttentionTerm::Kind;

TEST(AttentionForwardPatterns, SupportBandsOfEveryWidthAndOffset) {
  const std::int64_t bands[][3] = {{unbounded, 0, 0},  {unbounded, 0, 40}, {unbounded, 0, -40}, {16, 0, 0},
                                   {0, 0, 0},          {5, 3, 20},         {-10, 20, 0},        {30, unbounded, 7},
                                   {unbounded, -3, 0}, {4, 4, 1000}};
  for (DType dtype : {DType::f64, DType::f32})
    for (const auto& [left, right, offset] : bands)
      for (std::int64_t queries : {61, 500})
        expect_definition(ForwardProblem(dtype, {1, queries, 257, 2, 1, 16, 16}).band(left, right, offset),
                          std::to_string(left) + " " + std::to_string(right) + " " + std::to_string(offset));
}

TEST(AttentionForwardPatterns, KeepDocumentsApart) {
  for (bool causal : {false, true}) {
    ForwardProblem p(DType::f32, {1, 250, 250, 2, 2, 24, 8});
    if (causal) p.causal();
    p.with_documents(uneven_documents);
    expect_definition(p);
  }
}

TEST(AttentionForwardPatterns, FollowPositionsOfShards) {
  const auto maps = {PositionMap::contiguous(100, 100), PositionMap{100, 50, 50, 300, 1},
                     PositionMap{100, 100, 2, 2, 4}, PositionMap{100, 1, 399, 400, 1}};
  for (const PositionMap& queries : maps)
    for (const PositionMap& keys : maps) {
      ForwardProblem p(DType::f32, {1, 100, 100, 2, 1, 16, 16});
      p.band(120, 0);
      p.schedule.queries = queries;
      p.schedule.keys = keys;
      expect_definition(p, "shards");
    }
}

/// Sum over branches of [same segment][both at the phase of the head].
Multiplicity dilated(std::vector<std::int64_t> w, std::vector<std::int64_t> r) {
  return [w, r](std::int64_t h, std::int64_t i, std::int64_t j) {
    double count = 0;
    for (std::size_t b = 0; b < w.size(); ++b)
      count += i / w[b] == j / w[b] && i % w[b] % r[b] == h % r[b] && j % w[b] % r[b] == h % r[b];
    return count;
  };
}

TEST(AttentionForwardPatterns, CountKeysOfNestedBranchesWithMultiplicity) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (bool causal : {false, true}) {
      ForwardProblem p(dtype, {1, 333, 333, 5, 5, 16, 16});
      if (causal) p.causal();
      AttentionTerm& term = p.schedule.term[0];
      term.kind = Kind::dilated;
      term.nested = true;
      term.branches = 3;
      const std::int64_t w[] = {32, 64, 256}, r[] = {1, 2, 4};
      std::copy_n(w, 3, term.segment_length);
      std::copy_n(r, 3, term.dilation_rate);
      p.schedule.modulus = 4;
      p.schedule.cut = 32;
      p.counts(dilated({32, 64, 256}, {1, 2, 4}));
      expect_definition(p);
      // The cap applies to the product without the logarithm of the multiplicity; dropout applies to whole weights.
      p.with_dropout(0.3).scores.softcap = 1;
      expect_definition(p, "softcap");
    }
}

TEST(AttentionForwardPatterns, SupportBlocksAtOffsets) {
  for (std::int64_t block : {16, 48, 128}) {
    for (std::int64_t cut : {std::int64_t{0}, block}) {
      ForwardProblem p(DType::f32, {1, 600, 700, 2, 1, 16, 16});
      AttentionTerm& term = p.schedule.term[0];
      term.kind = Kind::offsets;
      term.size = block;
      term.sets = 2;  // head 0: -2, 0, 1; head 1: -4, -1
      term.set_begin[1] = 2;
      term.set_begin[2] = 4;
      term.run[0] = {-2, -2};
      term.run[1] = {0, 1};
      term.run[2] = {-4, -4};
      term.run[3] = {-1, -1};
      p.schedule.cut = cut;
      p.counts([block](std::int64_t h, std::int64_t i, std::int64_t j) {
        const std::int64_t d = j / block - i / block;
        return h == 0 ? d == -2 || d == 0 || d == 1 : d == -4 || d == -1;
      });
      expect_definition(p, "block " + std::to_string(block));
    }
  }
}

TEST(AttentionForwardPatterns, SupportListedBlocks) {
  // Three blocks of queries by four of keys: {0, 1, 3}, {}, {2}.
  const std::int64_t row_begin[] = {0, 3, 3, 4}, column_begin[] = {0, 1, 2, 3, 4};
  const std::int32_t columns[] = {0, 1, 3, 2}, rows[] = {0, 0, 2, 0};
  ForwardProblem p(DType::f32, {1, 100, 128, 2, 2, 16, 16});
  AttentionTerm& term = p.schedule.term[0];
  term.kind = Kind::listed;
  term.size = 32;
  term.lists = 1;
  term.block_rows = 3;
  term.block_columns = 4;
  term.row_begin = row_begin;
  term.column_begin = column_begin;
  term.columns = columns;
  term.rows = rows;
  p.counts(
      [](std::int64_t, std::int64_t i, std::int64_t j) { return i < 32 ? j / 32 != 2 : i / 32 == 2 && j / 32 == 2; });
  expect_definition(p);
}

TEST(AttentionForwardPatterns, CountPairsOfAUnionOnce) {
  // |i - j| < 20 or (i - j) mod 20 = 0, causal: the strided pattern.
  ForwardProblem p(DType::f32, {1, 170, 170, 2, 1, 16, 16});
  p.causal();
  p.schedule.term_count = 2;
  p.schedule.term[0].kind = Kind::all;
  p.schedule.term[0].left = p.schedule.term[0].right = 19;
  p.schedule.term[1].kind = Kind::residue;
  p.schedule.term[1].size = 20;
  p.schedule.modulus = 20;
  p.counts([](std::int64_t, std::int64_t i, std::int64_t j) {
    return std::abs(i - j) < 20 || (i - j) % 20 == 0 ? 1.0 : 0.0;
  });
  expect_definition(p);
}

}  // namespace
}  // namespace poolgrad::kernels::testing
