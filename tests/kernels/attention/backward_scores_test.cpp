// Gradients through softcap, bias, ALiBi, dropout and sinks, alone and combined.
#include "tests/kernels/attention/backward_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

BackwardExample causal(std::int64_t queries, std::int64_t keys) {
  BackwardExample e;
  e.q_heads = e.schedule.heads = 4;
  e.schedule.queries = PositionMap::contiguous(queries, keys - queries);
  e.schedule.keys = PositionMap::contiguous(keys);
  e.schedule.right = 0;
  e.multiplicity = band(e.schedule);
  return e;
}
/// Queries and keys in shards.
BackwardExample sharded() {
  BackwardExample e = causal(1, 1);
  e.schedule.queries = {75, 40, 20, 160, 1};
  e.schedule.keys = {83, 83, 1, 1, 2};
  return e;
}
/// Three branches: a pair counts up to three times.
BackwardExample dilated() {
  BackwardExample e = causal(110, 110);
  AttentionTerm& term = e.schedule.term[0];
  term.kind = AttentionTerm::Kind::dilated;
  term.nested = true;
  term.branches = 3;
  for (int b = 0; b < 3; ++b) {
    term.segment_length[b] = 16 << b;
    term.dilation_rate[b] = 1 << b;
  }
  e.schedule.modulus = 4;
  e.schedule.cut = 16;
  e.multiplicity = [term, inside = e.multiplicity](std::int64_t h, std::int64_t i, std::int64_t j) {
    return inside(h, i, j) * static_cast<double>(term.multiplicity(h, 4, i, j));
  };
  return e;
}

void expect_rules(void (*change)(BackwardExample&)) {
  for (BackwardExample e : {causal(61, 61), causal(130, 97), causal(1, 50), sharded(), dilated()}) {
    change(e);
    e.batch = 2;
    expect_definition(e);
  }
}

TEST(AttentionBackwardScores, SupportSoftcap) {
  expect_rules([](BackwardExample& e) { e.softcap = 1.5; });
}
TEST(AttentionBackwardScores, SupportBiasAndItsGradient) {
  expect_rules([](BackwardExample& e) { e.bias = e.dbias = true; });
}
TEST(AttentionBackwardScores, SupportAlibi) {
  expect_rules([](BackwardExample& e) { e.alibi = true; });
}
TEST(AttentionBackwardScores, SupportSinks) {
  expect_rules([](BackwardExample& e) { e.sinks = true; });
}
TEST(AttentionBackwardScores, SupportDropout) {
  expect_rules([](BackwardExample& e) { e.dropout = 0.3; });
}
TEST(AttentionBackwardScores, SupportAllModificationsAtOnce) {
  expect_rules([](BackwardExample& e) {
    e.softcap = 4;
    e.dropout = 0.2;
    e.bias = e.dbias = e.alibi = e.sinks = true;
  });
}

TEST(AttentionBackwardScores, GiveTheBiasItsGradientAtScaleZero) {
  BackwardExample e = causal(40, 40);
  e.bias = e.dbias = true;
  BackwardCheck check(e, DType::f64);
  for (std::int64_t i = 0; i < check.q.count(); ++i) check.q.set(i, 0.0);
  const BackwardCheck zero(e, DType::f64);
  // With q = 0 or scale 0 every product is 0, so P depends on the bias alone.
  BackwardCheck::Result by_scale(e, DType::f64), by_query(e, DType::f64);
  check.run(e.schedule, by_query.views());
  AttentionScores scores = zero.scores;
  scores.scale = 0;
  attention_backward({}, e.schedule, scores, zero.q.view(), zero.k.view(), zero.v.view(), check.lse, check.delta,
                     zero.grad_out.view(), by_scale.views());
  double sum = 0;
  for (std::int64_t i = 0; i < by_scale.dbias.count(); ++i) {
    ASSERT_EQ(by_scale.dbias[i], by_query.dbias[i]);
    sum += std::abs(by_scale.dbias[i]);
  }
  EXPECT_GT(sum, 1.0);
  for (std::int64_t i = 0; i < by_scale.dq.count(); ++i) ASSERT_EQ(by_scale.dq[i], 0.0);
}

TEST(AttentionBackwardScores, GiveTheSameBiasGradientAlone) {
  BackwardExample e = causal(70, 70);
  e.bias = e.dbias = true;
  const BackwardCheck check(e, DType::f32);
  const auto all = check.run();
  BackwardCheck::Result alone(e, DType::f32);
  check.run(e.schedule, {{}, {}, {}, alone.dbias.view(), false});
  EXPECT_EQ(alone.dbias.bytes(), all->dbias.bytes());
}

/// Compares every gradient with central differences of <dO, O> + <dlse, lse> of the forward kernel.
TEST(AttentionBackwardScores, AgreeWithCentralDifferencesOfTheForwardKernel) {
  BackwardExample e = causal(9, 11);
  e.kv_heads = 2;
  e.depth = 4;
  e.v_depth = 3;
  e.softcap = 2;
  e.dropout = 0.25;
  e.bias = e.dbias = e.alibi = e.sinks = true;
  BackwardCheck check(e, DType::f64);
  const auto analytic = check.run();
  RowsArray out(DType::f64, e.batch, e.queries(), e.q_heads, e.v_depth);
  TestArray lse(DType::f64, {e.batch, e.q_heads, e.queries()});
  const auto objective = [&] {
    attention_forward({}, e.schedule, check.scores, check.q.view(), check.k.view(), check.v.view(), out.view(), lse);
    double sum = 0;
    for (std::int64_t i = 0; i < out.count(); ++i) sum += out[i] * check.grad_out[i];
    for (std::int64_t i = 0; i < lse.count(); ++i) sum += lse[i] * check.grad_lse[i];
    return sum;
  };
  const auto expect_slope = [&](auto& x, const auto& gradient, const char* what) {
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double kept = x[i], step = 1e-6;
      x.set(i, kept + step);
      const double above = objective();
      x.set(i, kept - step);
      const double below = objective();
      x.set(i, kept);
      ASSERT_NEAR(gradient[i], (above - below) / (2 * step), 1e-7) << what << " " << i << "; seed " << test_seed();
    }
  };
  expect_slope(check.q, analytic->dq, "q");
  expect_slope(check.k, analytic->dk, "k");
  expect_slope(check.v, analytic->dv, "v");
  expect_slope(check.bias, analytic->dbias, "bias");
}

}  // namespace
}  // namespace poolgrad::kernels
