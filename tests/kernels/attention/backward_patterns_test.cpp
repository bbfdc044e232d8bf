// Backward attention over every kind of term, whole sequences and shards, against the definition.
#include <numeric>

#include "kernels/parallel.h"
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;
using Kind = AttentionTerm::Kind;

/// Sums terms of different groups and unites those of one, under the band.
Multiplicity of_terms(const AttentionSchedule& s) {
  return [s, inside = band(s)](std::int64_t h, std::int64_t i, std::int64_t j) {
    double count = 0;
    for (int t = 0; t < s.term_count; ++t) {
      bool earlier = false;
      for (int e = 0; e < t; ++e)
        earlier |= s.term[e].group == s.term[t].group && s.term[e].multiplicity(h, s.heads, i, j) > 0;
      if (!earlier && s.term[t].visited) count += static_cast<double>(s.term[t].multiplicity(h, s.heads, i, j));
    }
    return inside(h, i, j) * count;
  };
}

AttentionTerm dilated(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& rates, bool nested) {
  AttentionTerm term;
  term.kind = Kind::dilated;
  term.nested = nested;
  term.branches = static_cast<std::int32_t>(rates.size());
  std::copy(lengths.begin(), lengths.end(), term.segment_length);
  std::copy(rates.begin(), rates.end(), term.dilation_rate);
  return term;
}
AttentionTerm of_kind(Kind kind, std::int64_t size, std::int16_t group = 0) {
  AttentionTerm term;
  term.kind = kind;
  term.size = size;
  term.group = group;
  return term;
}
AttentionTerm offsets(std::int64_t block, const std::vector<AttentionTerm::OffsetRun>& runs) {
  AttentionTerm term = of_kind(Kind::offsets, block);
  term.sets = 1;
  term.set_begin[1] = static_cast<std::int16_t>(runs.size());
  std::copy(runs.begin(), runs.end(), term.run);
  return term;
}

struct Named {
  const char* name;
  std::vector<AttentionTerm> terms;
  std::int64_t modulus = 1, cut = 0;
};

std::vector<Named> patterns() {
  AttentionTerm united = dilated({16, 32, 64}, {1, 2, 4}, false), random = of_kind(Kind::random, 16);
  united.unite = true;
  random.seed = 7;
  random.threshold = std::uint64_t{1} << 51;
  return {
      {"nested branches", {dilated({16, 32, 64}, {1, 2, 4}, true)}, 4, 16},
      {"branches that are not nested", {dilated({12, 24}, {4, 6}, false)}, 12},
      {"united branches", {united}, 4},
      {"phases that begin anew with a segment", {dilated({10, 7}, {4, 3}, false)}, 12},
      {"block offsets", {offsets(16, {{-4, -4}, {-2, 2}, {4, 4}})}, 1, 16},
      {"random blocks", {random}, 1, 16},
      {"axial", {of_kind(Kind::segment, 12), of_kind(Kind::residue, 12)}, 12},
      {"sum of a segment and columns", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}},
      {"global rows and columns", {of_kind(Kind::columns, 9), of_kind(Kind::rows, 9), offsets(16, {{-1, 1}})}, 1, 16}};
}

BackwardExample example(const Named& pattern, PositionMap queries, PositionMap keys, bool causal) {
  BackwardExample e;
  e.q_heads = e.schedule.heads = 4;
  e.kv_heads = 2;
  e.schedule.queries = queries;
  e.schedule.keys = keys;
  e.schedule.right = causal ? 0 : unbounded;
  e.schedule.modulus = pattern.modulus;
  e.schedule.cut = pattern.cut;
  e.schedule.term_count = static_cast<std::int32_t>(pattern.terms.size());
  std::copy(pattern.terms.begin(), pattern.terms.end(), e.schedule.term);
  e.multiplicity = of_terms(e.schedule);
  return e;
}

TEST(AttentionBackwardPatterns, FollowTheDefinition) {
  for (const Named& pattern : patterns())
    for (const std::int64_t n : {61, 450})
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(pattern.name);
        BackwardExample e = example(pattern, PositionMap::contiguous(n), PositionMap::contiguous(n), causal);
        e.depth = n == 61 ? 8 : 9;  // dq summed up in place, or apart
        expect_definition(e);
      }
}

TEST(AttentionBackwardPatterns, FollowTheDefinitionOnShards) {
  const PositionMap zigzag{60, 30, 30, 150, 1}, striped{61, 61, 2, 2, 3}, part = PositionMap::contiguous(50, 70);
  for (const Named& pattern : patterns())
    for (const PositionMap& queries : {zigzag, striped, part})
      for (const PositionMap& keys : {zigzag, striped, part}) {
        SCOPED_TRACE(pattern.name);
        expect_definition(example(pattern, queries, keys, true));
      }
}

TEST(AttentionBackwardPatterns, ListedBlocksFollowTheDefinition) {
  // Two lists of blocks of 16 over 5 block rows and 6 block columns; heads take turns. Row 3 of the first is empty.
  const std::vector<std::int64_t> row_begin{0, 2, 3, 5, 5, 8, 0 + 8, 9, 11, 12, 13, 14};
  const std::vector<std::int32_t> columns{0, 1, 3, 2, 5, 0, 3, 4, 1, 0, 5, 2, 3, 4};
  const std::int64_t block_rows = 5, block_columns = 6, lists = 2;
  std::vector<std::int64_t> column_begin{};
  std::vector<std::int32_t> rows;
  for (std::int64_t l = 0; l < lists; ++l) {
    const std::int64_t* begin = row_begin.data() + l * (block_rows + 1);
    for (std::int32_t c = 0; c < block_columns; ++c) {
      column_begin.push_back(static_cast<std::int64_t>(rows.size()));
      for (std::int32_t r = 0; r < block_rows; ++r)
        for (std::int64_t n = begin[r]; n < begin[r + 1]; ++n)
          if (columns[static_cast<std::size_t>(n)] == c) rows.push_back(r);
    }
    column_begin.push_back(static_cast<std::int64_t>(rows.size()));
  }
  AttentionTerm term = of_kind(Kind::listed, 16);
  term.lists = lists;
  term.block_rows = block_rows;
  term.block_columns = block_columns;
  term.row_begin = row_begin.data();
  term.columns = columns.data();
  term.column_begin = column_begin.data();
  term.rows = rows.data();
  for (const bool causal : {false, true})
    expect_definition(
        example({"listed", {term}, 1, 16}, PositionMap::contiguous(80), PositionMap::contiguous(93), causal));
}

TEST(AttentionBackwardPatterns, TheSameBitsForAnyNumberOfThreads) {
  for (const Named& pattern : patterns()) {
    SCOPED_TRACE(pattern.name);
    const std::int64_t n = 300;
    const BackwardCheck check(example(pattern, PositionMap::contiguous(n), PositionMap::contiguous(n), false),
                              DType::f32);
    expect_equal_bits(check, {2, 3, 8});
  }
}

TEST(AttentionBackwardPatterns, TermsInPassesAccumulateToTheirSum) {
  const std::int64_t n = 120;
  const Named both{"sum", {of_kind(Kind::segment, 20), of_kind(Kind::columns, 5, 1)}};
  BackwardExample e = example(both, PositionMap::contiguous(n), PositionMap::contiguous(n), true);
  e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  BackwardCheck::Result sum(check.e, DType::f32);
  for (std::size_t t = 0; t < 2; ++t) {
    const Named one{"pass", {both.terms[t]}};
    check.run(example(one, PositionMap::contiguous(n), PositionMap::contiguous(n), true).schedule, sum.views(t > 0));
  }
  check.expect(sum, 2e-5);
}

TEST(AttentionBackwardPatterns, PartsOfACallKnowTheirHeads) {
  // Heads 2 and 3 alone, of a pattern whose phases depend on the head.
  const Named pattern = patterns()[0];
  const BackwardCheck whole(example(pattern, PositionMap::contiguous(90), PositionMap::contiguous(90), false),
                            DType::f64);
  const auto expected = whole.run();
  const auto heads = [](View view, int dimension, std::int64_t first, std::int64_t count) {
    view.data = view.as<double>() + first * view.strides[dimension];
    view.shape[dimension] = count;
    return view;
  };
  BackwardCheck::Result actual(whole.e, DType::f64);
  const auto part = [&](std::int64_t kv) {
    AttentionScores scores = whole.scores;
    scores.first_head = 2 * kv;
    attention_backward({}, whole.e.schedule, scores, heads(whole.q.view(), 2, 2 * kv, 2),
                       heads(whole.k.view(), 2, kv, 1), heads(whole.v.view(), 2, kv, 1),
                       heads(whole.lse.view(), 1, 2 * kv, 2), heads(whole.delta.view(), 1, 2 * kv, 2),
                       heads(whole.grad_out.view(), 2, 2 * kv, 2),
                       {heads(actual.dq.view(), 2, 2 * kv, 2),
                        heads(actual.dk.view(), 2, kv, 1),
                        heads(actual.dv.view(), 2, kv, 1),
                        {},
                        false});
  };
  part(0);
  part(1);
  EXPECT_EQ(actual.dq.bytes(), expected->dq.bytes());
  EXPECT_EQ(actual.dk.bytes(), expected->dk.bytes());
  EXPECT_EQ(actual.dv.bytes(), expected->dv.bytes());
}

}  // namespace
}  // namespace poolgrad::kernels
