// Backward attention over bands, documents and every map of positions, against the definition.
#include "kernels/parallel.h"
#include "tests/kernels/attention_backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

BackwardExample banded(PositionMap queries, PositionMap keys, std::int64_t left, std::int64_t right) {
  BackwardExample e;
  e.schedule.queries = queries;
  e.schedule.keys = keys;
  e.schedule.left = left;
  e.schedule.right = right;
  e.schedule.heads = e.q_heads;
  e.multiplicity = band(e.schedule);
  return e;
}
BackwardExample banded(std::int64_t queries, std::int64_t keys, std::int64_t left, std::int64_t right) {
  return banded(PositionMap::contiguous(queries, keys - queries), PositionMap::contiguous(keys), left, right);
}
BackwardExample causal(std::int64_t n) { return banded(n, n, unbounded, 0); }

struct Band {
  std::int64_t left, right;
};
const Band bands[] = {{unbounded, unbounded}, {unbounded, 0}, {16, 0}, {5, 3}, {0, 0}, {-10, 20},
                      {30, unbounded},        {-3000, 4000}};

/// Chunks of a sequence of `count` * 4 positions as shards hold them: from the middle, zigzag, striped.
std::vector<PositionMap> shards(std::int64_t count) {
  return {PositionMap::contiguous(count, count),
          {count, count / 2, 0, 4 * count - (count - count / 2), 1},
          {count, count, 3, 3, 4}};
}

TEST(AttentionBackward, FollowsTheDefinitionForEveryBand) {
  for (const Band& b : bands)
    for (const std::int64_t n : {1, 7, 61, 257}) expect_definition(banded(n, n, b.left, b.right));
}

TEST(AttentionBackward, QueriesAndKeysMayDifferInNumber) {
  for (const Band& b : bands) {
    expect_definition(banded(1, 300, b.left, b.right));
    expect_definition(banded(131, 17, b.left, b.right));
    expect_definition(banded(70, 129, b.left, b.right));
  }
}

TEST(AttentionBackward, TakesEveryMapOfPositions) {
  for (const Band& b : bands)
    for (const PositionMap& queries : shards(70))
      for (const PositionMap& keys : shards(53)) expect_definition(banded(queries, keys, b.left, b.right));
}

TEST(AttentionBackward, PairsOfDifferentDocumentsDoNotCount) {
  const std::vector<std::int64_t> starts{0, 5, 5, 40, 100, 130};  // one is empty; positions from 130 on see nothing
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

TEST(AttentionBackward, TakesEveryHeadDimension) {
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

TEST(AttentionBackward, SumsUpWhatIsNarrowAndLongInFewRows) {
  // Widths that are no whole vectors, and half types: dq is summed up apart, of the rows that are still incomplete.
  for (const Band& b : {Band{16, 0}, Band{60, 130}, Band{-300, 310}}) {
    BackwardExample e = banded(1500, 1500, b.left, b.right);
    e.kv_heads = 1;
    e.depth = 9;
    expect_definition(e);
    const BackwardCheck check(e, DType::bf16);
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

TEST(AttentionBackward, LengthsOfNothing) {
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 0}, {0, 0}})
    expect_definition(banded(queries, keys, unbounded, unbounded));
  BackwardExample e = causal(4);
  e.batch = 0;
  expect_definition(e);
}

TEST(AttentionBackward, AQueryThatSeesNothingHasNoGradientWhateverItsRowsHold) {
  BackwardExample e = banded(90, 60, unbounded, 0);  // the first 30 queries come before every key
  BackwardCheck check(e, DType::f32);
  for (std::int64_t i = 0; i < 30 * e.q_heads * e.v_depth; ++i)
    check.grad_out.set(i, std::numeric_limits<double>::quiet_NaN());
  check.expect(*check.run(), 2e-5);
}

TEST(AttentionBackward, LseOfMinusInfinitySwitchesAQueryOff) {
  BackwardExample e = causal(60);
  e.alone = {0, 7, 31, 59};
  expect_definition(e);
}

TEST(AttentionBackward, WithoutAGradientOfOutOnlyThatOfLseCounts) {
  BackwardExample e = causal(100);
  BackwardCheck zero(e, DType::f64);
  for (std::int64_t i = 0; i < zero.grad_out.count(); ++i) zero.grad_out.set(i, 0.0);
  zero.delta.fill([&](std::int64_t i) { return -zero.grad_lse[i]; });
  const auto expected = zero.run();
  BackwardCheck::Result actual(e, DType::f64);
  attention_backward({}, e.schedule, zero.scores, zero.q.view(), zero.k.view(), zero.v.view(), zero.lse, zero.delta, {},
                     actual.views());
  EXPECT_EQ(actual.dq.bytes(), expected->dq.bytes());
  EXPECT_EQ(actual.dk.bytes(), expected->dk.bytes());
  for (std::int64_t i = 0; i < actual.dv.count(); ++i) ASSERT_EQ(actual.dv[i], 0.0);
}

TEST(AttentionBackward, EachGradientIsOptional) {
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

TEST(AttentionBackward, TheSameBitsForAnyNumberOfThreads) {
  const int before = num_threads();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const std::int64_t depth : {8, 9}) {  // dq summed up in place, and in scratch
      BackwardExample e = causal(331);
      e.q_heads = e.schedule.heads = 3;
      e.kv_heads = 3;
      e.depth = depth;
      const BackwardCheck check(e, dtype);
      set_num_threads(1);
      const auto one = check.run();
      for (const int threads : {2, 3, 5}) {
        set_num_threads(threads);
        const auto several = check.run();
        EXPECT_EQ(several->dq.bytes(), one->dq.bytes()) << threads << " threads";
        EXPECT_EQ(several->dk.bytes(), one->dk.bytes()) << threads << " threads";
        EXPECT_EQ(several->dv.bytes(), one->dv.bytes()) << threads << " threads";
      }
    }
  }
  set_num_threads(before);
}

TEST(AttentionBackward, ShardsAccumulateToTheWhole) {
  // Keys in four shards of a sequence, one after another, with the global lse and delta.
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

TEST(AttentionBackward, AccumulatesInTheComputeTypeOfHalfOperands) {
  const BackwardExample e = causal(90);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const BackwardCheck check(e, dtype);
    BackwardCheck::Result sum(e, DType::f32);
    check.run(e.schedule, sum.views());  // written in f32
    check.expect(sum, 2e-5);
    check.run(e.schedule, sum.views(true));
    for (std::int64_t i = 0; i < sum.dq.count(); ++i)
      ASSERT_NEAR(sum.dq[i], 2 * check.expected.dq[static_cast<std::size_t>(i)], 1e-4);
  }
}

TEST(AttentionBackward, HalfTypesRoundOnlyTheResult) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    BackwardExample e = causal(130);
    e.depth = e.v_depth = 33;
    const BackwardCheck check(e, dtype);
    const auto result = check.run();
    const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    for (std::int64_t i = 0; i < result->dk.count(); ++i) {
      const double expected = check.expected.dk[static_cast<std::size_t>(i)];
      ASSERT_NEAR(result->dk[i], expected, 1.01 * unit * std::abs(expected) + 2e-5) << "seed " << test_seed();
    }
  }
}

TEST(AttentionDelta, IsTheProductOfOutAndItsGradientLessTheGradientOfLse) {
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
