// Precision: f32 is close to the definition; half types have at most twice the error of a plain computation in that
// type.
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::defined;
using testing_support::make_call;
using testing_support::Outcome;
using testing_support::parts;

TEST(AttendPrecision, SinglePrecisionFollowsTheDefinition) {
  for (const Case& one : cases_with("")) {
    Call call = make_call({1, 101, 101, 4, 2, 16, 16});
    call.options.sinks = testing_support::normal({4}, 3);
    call = rounded(call, DType::f32);
    EXPECT_EQ(difference(attended(call, one.pattern), defined(call, one.m), 1e-5), "") << one.name;
  }
}

/// softmax(q k^T + log m) v with each step rounded to the type of q, as unfused operators compute it.
Attended eager(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_m) {
  const std::int64_t group = q.size(2) / k.size(2), heads = q.size(2);
  const auto per_head = [&](const Tensor& x) {
    const Shape shape{x.size(0), x.size(2), group, x.size(1), x.size(3)};
    return reshape(expand(unsqueeze(permute(x, {0, 2, 1, 3}), 2), shape), {x.size(0), heads, x.size(1), x.size(3)});
  };
  const Tensor scores =
      matmul(permute(q, {0, 2, 1, 3}), transpose(per_head(k), 2, 3)) / std::sqrt(static_cast<double>(q.size(3))) +
      log_m;
  return {permute(matmul(softmax(scores, -1), per_head(v)), {0, 2, 1, 3}), logsumexp(scores, -1)};
}

TEST(AttendPrecision, HalfTypesHaveAtMostTwiceTheErrorOfEagerOperators) {
  const std::int64_t length = 120, heads = 4;
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const char* name : {"dense", "window(40, unbounded)", "dilated nested", "blocks at offsets", "dense twice",
                             "window + offsets + sinks"})
      for (const Case& one : cases_with(name)) {
        Call call = rounded(make_call({1, length, length, heads, 2, 32, 32}), dtype);
        call.grad_lse = {};
        std::vector<double> table;
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t i = 0; i < length; ++i)
            for (std::int64_t j = 0; j < length; ++j)
              table.push_back(std::log(static_cast<double>(one.m(h, heads, i, j))));
        const Tensor log_m = to(from_data(table, {1, heads, length, length}), dtype);
        const Outcome exact = defined(call, one.m), fused = attended(call, one.pattern),
                      plain = outcome_of(call, [&](const Tensor&q, const Tensor&k, const Tensor&v,
                                                   const AttendOptions&) { return eager(q, k, v, log_m); });
        EXPECT_EQ(fused.out.dtype(), dtype);
        EXPECT_EQ(fused.lse.dtype(), DType::f32);
        const auto want = parts(exact), got = parts(fused), eagerly = parts(plain);
        for (const std::size_t i : {0u, 2u, 3u, 4u}) {  // out, dq, dk, dv
          const double error = max_difference(got[i].second, want[i].second);
          const double allowed = 2 * max_difference(eagerly[i].second, want[i].second) + 1e-6;
          EXPECT_LE(error, allowed) << to_string(dtype) << " " << want[i].first << " of " << one.name;
        }
      }
}

/// A score of 80 in f32 has steps of 2^-18. The backward pass gets exact weights exp(score - lse) only if it repeats
/// the forward pass bit for bit.
TEST(AttendPrecision, TheBackwardPassUsesTheWeightsOfTheForwardPass) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f32, DType::f16, DType::f64})
    for (const std::int64_t width : {1, 8, 33, 64})
      for (const std::int64_t queries : {1, 2, 3, 5, 8, 9, 32}) {
        Call call =
            make_call({1, queries, 1, 2, 1, width, 4}, dtype, test_seed() + static_cast<std::uint64_t>(queries));
        call.q = call.q * std::sqrt(80.0), call.k = call.k * std::sqrt(80.0);
        call.grad_out = to(randint(-3, 4, call.grad_out.shape(), {.dtype = DType::i64}, generator), dtype);
        call.grad_lse = {};
        const Outcome got = attended(call, Pattern::dense());  // one key: every weight is 1
        EXPECT_TRUE(bit_equal(got.dv, sum(call.grad_out, {1, 2}, true)))
            << to_string(dtype) << ", width " << width << ", " << queries << " queries, seed " << test_seed();
      }
}

/// Few keys with large scores: gradients of scores nearly cancel, and delta = <dO, out> uses `out` in 16 bits.
TEST(AttendPrecision, GradientErrorOfPeakedRowsIsTheRoundingOfTheResult) {
  for (const auto& [dtype, unit] : {std::pair{DType::f16, 0x1p-11}, {DType::bf16, 0x1p-8}}) {
    Call call = make_call({80, 3, 3, 1, 1, 8, 8});
    Generator generator(7);
    for (Tensor* x : {&call.q, &call.k, &call.v, &call.grad_out}) *x = rand(x->shape(), -9, 9, x->options(), generator);
    call.grad_lse = {};
    call = rounded(call, dtype);
    const Outcome exact = defined(call, oracle::dense()), fused = attended(call, Pattern::dense()),
                  plain = outcome_of(call, [](const Tensor&q, const Tensor&k, const Tensor&v, const AttendOptions&) {
                    return attend_by_definition(q, k, v);
                  });
    EXPECT_EQ(difference(fused, exact, 2e-5, rounding_of(call, oracle::dense(), dtype), unit), "") << to_string(dtype);
    EXPECT_LT(max_difference(plain.dq, exact.dq), max_difference(fused.dq, exact.dq)) << to_string(dtype);
    EXPECT_LT(max_difference(plain.dk, exact.dk), max_difference(fused.dk, exact.dk)) << to_string(dtype);
  }
}

TEST(AttendPrecision, HugeScoresNeitherOverflowNorVanish) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    Call call = make_call({1, 33, 33, 2, 2, 8, 8}, dtype);
    call.options.scale = 200.0;  // scores of thousands
    for (const Case& one : cases_with("strided")) {
      const Outcome got = attended(call, one.pattern);
      for (const auto& [name, x] : parts(got))
        EXPECT_TRUE(!x.defined() || all(isfinite(x)).item()) << name << " " << to_string(dtype);
      const double tolerance = dtype == DType::f64 ? 1e-9 : dtype == DType::f32 ? 2e-3 : 0.05;
      EXPECT_LT(max_difference(got.out, defined(call, one.m).out), tolerance) << to_string(dtype) << " " << one.name;
    }
  }
}

}  // namespace
}  // namespace poolgrad::attention
