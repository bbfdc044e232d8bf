// Backward attention with bands, documents and every kind of position map, compared with the definition.
#include "kernels/parallel.h"
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

struct Band {
  std::int64_t left, right;
};
const Band bands[] = {{unbounded, unbounded}, {unbounded, 0}, {16, 0}, {5, 3}, {0, 0}, {-10, 20},
                      {30, unbounded},        {-3000, 4000}};

/// Shards of a sequence of `count` * 4 positions: from the middle, zigzag, striped.
std::vector<PositionMap> shards(std::int64_t count) {
  return {PositionMap::contiguous(count, count),
          {count, count / 2, 0, 4 * count - (count - count / 2), 1},
          {count, count, 3, 3, 4}};
}

TEST(AttentionBackward, FollowsTheDefinitionForEveryBand) {
  for (const Band& b : bands)
    for (const std::int64_t n : {1, 7, 61, 257}) expect_definition(banded(n, n, b.left, b.right));
}

TEST(AttentionBackward, AllowsDifferentNumbersOfQueriesAndKeys) {
  for (const Band& b : bands) {
    expect_definition(banded(1, 300, b.left, b.right));
    expect_definition(banded(131, 17, b.left, b.right));
    expect_definition(banded(70, 129, b.left, b.right));
  }
}

TEST(AttentionBackward, SupportsEveryPositionMap) {
  for (const Band& b : bands)
    for (const PositionMap& queries : shards(70))
      for (const PositionMap& keys : shards(53)) expect_definition(banded(queries, keys, b.left, b.right));
}

TEST(AttentionBackward, IgnoresPairsOfDifferentDocuments) {
  const std::vector<std::int64_t> starts{0, 5, 5, 40, 100, 130};  // one is empty; positions from 130 on see no key
  const auto document = [&](std::int64_t position) {
    return std::upper_bound(starts.begin(), starts.end(), position) - starts.begin();
  };
  for (const Band& b : bands) {
    BackwardExample e = banded(150, 150, b.left, b.right);
    e.schedule.documents = starts.data();
    e.schedule.document_count = static_cast<std::int32_t>(starts.size() - 1);
    e.multiplicity = [&, inner = e.multiplicity](std::int64_t h, std::int64_t i, std::int64_t j) {
      const bool same = document(i) == document(j) && i < starts.back() && j < starts.back();
      return same ? inner(h, i, j) : 0.0;
    };
    expect_definition(e);
  }
}

TEST(AttentionBackward, SupportsEveryHeadDimension) {
  for (const std::int64_t depth : {1, 2, 8, 15, 16, 17, 31, 33, 64, 80, 128, 256}) {
    BackwardExample e = causal(57);
    e.depth = e.v_depth = depth;
    expect_definition(e);
  }
  for (const std::int64_t depth : {5, 24}) {
    BackwardExample e = causal(43);
    e.depth = depth;
    e.v_depth = 29 - depth;
    expect_definition(e);
  }
}

TEST(AttentionBackward, SumsNarrowLongHeadsInFewRows) {
  // Widths that are not whole vectors, and half types: dq of incomplete rows is summed in scratch.
  for (const Band& b : {Band{16, 0}, Band{60, 130}, Band{-300, 310}}) {
    BackwardExample e = banded(900, 900, b.left, b.right);
    e.kv_heads = 1;
    e.depth = 9;
    expect_definition(e);
    const BackwardCheck check(e, DType::f16);
    BackwardCheck::Result sum(e, DType::f32);
    check.run(e.schedule, sum.views());
    check.expect(sum, 2e-5);
  }
}

TEST(AttentionBackward, SharesKeysAmongTheHeadsOfAGroup) {
  for (const std::int64_t group : {2, 3, 8}) {
    BackwardExample e = causal(131);
    e.batch = 2;
    e.kv_heads = 2;
    e.schedule.heads = e.q_heads = 2 * group;
    expect_definition(e);
  }
}

TEST(AttentionBackward, AccumulatesShardsToTheWhole) {
  // The keys in four shards of a sequence, one after another, with the global lse and delta.
  const std::int64_t n = 203;
  BackwardExample e = causal(n);
  e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  BackwardCheck::Result sum(e, DType::f32);
  for (RowsArray* x : {&sum.dq, &sum.dk, &sum.dv})
    for (std::int64_t i = 0; i < x->count(); ++i) x->set(i, 0.0);
  sum.dbias.zero();
  const auto slice = [](View view, int dimension, std::int64_t begin, std::int64_t count) {
    view.data = view.as<float>() + begin * view.strides[dimension];
    view.shape[dimension] = count;
    return view;
  };
  for (std::int64_t begin = 0; begin < n; begin += 60) {
    const std::int64_t count = std::min<std::int64_t>(60, n - begin);
    AttentionSchedule part = e.schedule;
    part.keys = PositionMap::contiguous(count, begin);
    AttentionGradients gradients = sum.views(true);
    gradients.dk = slice(gradients.dk, 1, begin, count);
    gradients.dv = slice(gradients.dv, 1, begin, count);
    gradients.dbias = slice(gradients.dbias, 3, begin, count);
    attention_backward({}, part, check.scores, check.q.view(), slice(check.k.view(), 1, begin, count),
                       slice(check.v.view(), 1, begin, count), check.lse, check.delta, check.grad_out.view(),
                       gradients);
  }
  check.expect(sum, 2e-5);
}

TEST(AttentionDelta, FollowsItsDefinition) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    BackwardExample e = causal(70);
    e.batch = 2;
    e.v_depth = 19;
    const BackwardCheck check(e, dtype);
    for (const DType out_dtype : {dtype, compute_dtype(dtype)}) {
      RowsArray out(out_dtype, e.batch, e.queries(), e.q_heads, e.v_depth);
      for (std::int64_t i = 0; i < out.count(); ++i) out.set(i, check.out[static_cast<std::size_t>(i)]);
      TestArray delta(check.compute, {e.batch, e.q_heads, e.queries()});
      for (const bool with_grad : {true, false})
        for (const bool with_lse : {true, false}) {
          attention_delta({}, out.view(), with_grad ? check.grad_out.view() : View{},
                          with_lse ? check.grad_lse.view() : View{}, delta);
          expect_elements(
              delta,
              [&](std::int64_t row) {
                const std::int64_t i = row % e.queries(), h = row / e.queries() % e.q_heads,
                                   b = row / e.queries() / e.q_heads, at = (b * e.queries() + i) * e.q_heads + h;
                double sum = with_lse ? -check.grad_lse[row] : 0.0;
                for (std::int64_t d = 0; with_grad && d < e.v_depth; ++d)
                  sum += out[at * e.v_depth + d] * check.grad_out[at * e.v_depth + d];
                return sum;
              },
              0, dtype == DType::f64 ? 1e-13 : 1e-5);
        }
    }
  }
}

}  // namespace
}  // namespace poolgrad::kernels
