// First and second derivatives in f64, compared with central differences: for every operand, through both results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/attend.h"
#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "kernels/instruction_sets.h"
#include "tensor/compare.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::defined;
using testing_support::difference;
using testing_support::make_call;
using testing_support::normal;
using testing_support::outcome_of;
using testing_support::sim;
using testing_support::Sizes;

struct Differentiable {
  std::vector<Tensor> inputs;  // q, k, v, bias, sinks
  TensorFunction function;
};

/// attend() with every option as a function of five operands.
Differentiable with_all_options(const Sizes& s, const Pattern& pattern) {
  Call call = make_call(s);
  std::vector<Tensor> inputs{call.q, call.k, call.v, normal({1, s.heads, 1, s.keys}, 3), normal({s.heads}, 4)};
  for (Tensor& x : inputs) x.set_requires_grad();
  return {inputs, [=](const std::vector<Tensor>& x) -> std::vector<Tensor> {
            Generator generator(6);
            const auto [out, lse] = attend(x[0], x[1], x[2], pattern,
                                           {.softcap = 2.0,
                                            .bias = x[3],
                                            .alibi = alibi_slopes(s.heads, {.dtype = DType::f64}),
                                            .sinks = x[4],
                                            .dropout = 0.3,
                                            .generator = &generator});
            return {out, lse};
          }};
}

TEST(AttendGradient, AgreesWithCentralDifferencesForEveryOperand) {
  for (const char* name : {"dense", "window(3, 7)", "documents", "global tokens", "dilated nested",
                           "dilated not nested", "dilated contiguous", "blocks listed", "strided", "dilated + window"})
    for (const Case& one : cases_with(name)) {
      const Differentiable d = with_all_options({1, 9, 11, 2, 1, 2, 2}, one.pattern);
      const GradcheckReport report = gradcheck(d.function, d.inputs);
      EXPECT_TRUE(report) << one.name;
    }
}

TEST(AttendGradient, SecondDerivativesAgreeWithCentralDifferences) {
  for (const char* name : {"window(3, 7)", "dilated not nested", "dense twice"})
    for (const Case& one : cases_with(name)) {
      const Differentiable d = with_all_options({1, 3, 4, 2, 1, 2, 2}, one.pattern);
      const GradcheckReport report = gradgradcheck(d.function, d.inputs);
      EXPECT_TRUE(report) << one.name;
    }
}

/// Compares attend() with the same function written with primitive operators.
TEST(AttendGradient, EqualsTheGradientOfPrimitiveOperators) {
  for (const Case& one : cases_with("")) {
    Generator generator(7);
    Call call = make_call({1, 37, 45, 4, 2, 4, 3});
    call.options = {.scale = 0.4,
                    .softcap = 3.0,
                    .bias = normal({1, 1, 37, 45}, 8),
                    .alibi = alibi_slopes(4, {.dtype = DType::f64}),
                    .sinks = normal({4}, 9),
                    .dropout = 0.2,
                    .generator = &generator};
    Generator same = generator;
    const auto want = outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, AttendOptions options) {
      options.generator = &same;
      return attend_by_definition(q, k, v, one.pattern, options);
    });
    EXPECT_EQ(difference(attended(call, one.pattern), want, 1e-12), "") << one.name;
  }
}

TEST(AttendGradient, EqualsThatOfTheDefinitionUnderAutocast) {
  const Call call = make_call({1, 16, 20, 4, 2, 16, 16}, DType::f32);
  const auto run = [&](bool defined) {
    return outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options) {
      const AutocastScope scope(DType::bf16);
      const Attended result = defined ? attend_by_definition(q, k, v, Pattern::causal(), options)
                                      : attend(q, k, v, Pattern::causal(), options);
      return Attended{to(result.out, DType::f32), result.lse};
    });
  };
  EXPECT_EQ(difference(run(true), run(false), 0.02), "");
}

TEST(AttendGradient, IsComputedOnlyForOperandsThatRequireIt) {
  const Call call = make_call({1, 20, 20, 4, 2, 8, 8});
  const Pattern pattern = Pattern::dilated({8, 16}, {1, 2});
  const auto want = attended(call, pattern);
  const Tensor expected[] = {want.dq, want.dk, want.dv};
  for (int wanted = 1; wanted < 8; ++wanted) {
    std::vector<Tensor> x{call.q.detach(), call.k.detach(), call.v.detach()};
    for (std::size_t i = 0; i < 3; ++i)
      if (wanted >> i & 1) x[i].set_requires_grad();
    const Attended result = attend(x[0], x[1], x[2], pattern);
    (sum(result.out * call.grad_out) + sum(result.lse * call.grad_lse)).backward();
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(x[i].grad().defined(), (wanted >> i & 1) != 0);
      EXPECT_TRUE(!x[i].grad().defined() || bit_equal(x[i].grad(), expected[i])) << wanted << " " << i;
    }
  }
}

/// Rows of k and v that no query sees, rows of q that see no key, and the gradients of those queries.
TEST(AttendGradient, SecondDerivativesIgnoreUnseenRows) {
  const std::int64_t keys = 20, queries = 24;  // the first four queries precede every key
  Call call = make_call({2, queries, keys, 4, 2, 4, 3});
  call.options.softcap = 2.0;
  call.options.key_padding = less(normal({2, keys}, 8), full({2, keys}, 0.2, {.dtype = DType::f64}));
  call.options.bias = normal({1, 4, queries, keys}, 9);
  slice(call.options.bias, 3, 7, 9).fill(-testing_support::infinity);
  const Pattern pattern = Pattern::causal();
  const auto gradients = [&](const Call& of, bool recorded) {
    std::vector<Tensor> x;
    for (const Tensor& operand : {of.q, of.k, of.v, of.options.bias}) x.push_back(operand.detach().set_requires_grad());
    AttendOptions options = of.options;
    options.bias = x[3];
    const auto [out, lse] = attend(x[0], x[1], x[2], pattern, options);
    return grad({out, lse}, x, {of.grad_out, of.grad_lse}, {.create_graph = recorded});
  };
  const std::vector<Tensor> want = gradients(call, false);
  const Tensor padded = reshape(call.options.key_padding, {2, keys, 1, 1});
  for (const double evil : {testing_support::infinity, std::nan("")}) {
    Call bad = call;
    bad.k = masked_fill(call.k, padded, evil);
    bad.v = masked_fill(call.v, padded, evil);
    for (Tensor* x : {&bad.q, &bad.grad_out}) *x = x->copy(), slice(*x, 1, 0, 4).fill(evil);
    for (Tensor* x : {&bad.k, &bad.v}) slice(*x, 1, 7, 9).fill(evil);
    for (const bool recorded : {false, true}) {
      const std::vector<Tensor> got = gradients(bad, recorded);
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(allclose(got[i], want[i], 1e-12, 1e-13))
            << evil << (recorded ? ", recorded" : "") << ", operand " << i;
    }
  }
}

TEST(AttendGradient, SinkGradientsIgnoreAQueryWithoutKeys) {
  const double lowest = -std::numeric_limits<double>::infinity();
  const TensorOptions f64{.dtype = DType::f64};
  const Tensor q = normal({1, 3, 1, 4}, 1), k = normal({1, 2, 1, 4}, 2), v = normal({1, 2, 1, 4}, 3);
  const Tensor sinks = full({1}, lowest, f64).set_requires_grad();
  Tensor grad_out = ones({1, 3, 1, 4}, f64);
  grad_out.data<double>()[0] = std::nan("");  // of the first query, which precedes every key
  const auto [out, lse] = attend(q, k, v, Pattern::causal(), {.sinks = sinks});
  EXPECT_EQ(grad({out}, {sinks}, {grad_out})[0].item(), 0.0);
}

TEST(AttendGradient, AddsUpWhenOneTensorIsQueryKeyAndValue) {
  const Call call = make_call({1, 33, 33, 2, 2, 4, 4});
  const auto apart = outcome_of({call.q, call.q, call.q, {}, call.grad_out, call.grad_lse},
                                [](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions&) {
                                  return attend(q, k, v, Pattern::causal());
                                });
  const Tensor x = call.q.detach().set_requires_grad();
  const Attended result = attend(x, x, x, Pattern::causal());
  (sum(result.out * call.grad_out) + sum(result.lse * call.grad_lse)).backward();
  EXPECT_TRUE(allclose(x.grad(), apart.dq + apart.dk + apart.dv, 1e-12, 1e-13));
}

/// With D = 0 every score is its bias; with Dv = 0 too, lse is the only result with elements.
TEST(AttendGradient, ZeroWidthHeadsFollowTheDefinition) {
  for (const std::string_view set : kernels::instruction_sets()) {
    kernels::set_instruction_set(set);
    for (const auto& [width, value_width] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 3}, {3, 0}})
      for (const std::int64_t queries : {1, 13, 70})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
          for (const Case& one : cases_with("window(3, 7)")) {
            Call call = make_call({2, queries, 70, 4, 2, width, value_width}, dtype);
            call.options.bias = normal({1, 4, queries, 70}, 8, compute_dtype(dtype));
            call.options.sinks = normal({4}, 9, compute_dtype(dtype));
            const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0.02;
            EXPECT_EQ(difference(attended(call, one.pattern), defined(call, one.m), tolerance), "")
                << set << " " << queries << " queries, width " << width << ":" << value_width << " " << to_string(dtype)
                << " " << one.name;
          }
  }
  kernels::set_instruction_set("auto");
}

TEST(AttendGradient, ZeroWidthHeadsKeepTheirShapesOnASimulatedDevice) {
  for (const auto& [width, value_width] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {0, 3}, {3, 0}}) {
    Call call = make_call({2, 13, 70, 4, 2, width, value_width}, DType::f32);
    for (Tensor* x : {&call.q, &call.k, &call.v, &call.grad_out, &call.grad_lse}) *x = to(*x, sim);
    const auto got = attended(call, Pattern::causal());
    EXPECT_EQ(got.out.shape(), (Shape{2, 13, 4, value_width}));
    EXPECT_EQ(got.lse.shape(), (Shape{2, 4, 13}));
    EXPECT_EQ(got.dq.shape(), call.q.shape());
    EXPECT_EQ(got.dk.shape(), call.k.shape());
    EXPECT_EQ(got.dv.shape(), call.v.shape());
    for (const Tensor& x : {got.out, got.lse, got.dq, got.dk, got.dv}) EXPECT_EQ(x.device(), sim);
  }
}

}  // namespace
}  // namespace poolgrad::attention
