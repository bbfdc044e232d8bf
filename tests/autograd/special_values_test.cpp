// Infinities, NaN and numbers near the ends of the range: results and gradients on the suite's device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/functional.h"
#include "autograd/operators.h"
#include "tensor/grad_mode.h"
#include "tests/autograd/operator_suite.h"

namespace poolgrad::testing {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity(), nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr DType floating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
using Doubles = std::vector<double>;

Tensor leaf(const Doubles& values, DType dtype = DType::f64) {
  return to(to(from_data(values, {static_cast<std::int64_t>(values.size())}), dtype), suite.device).set_requires_grad();
}
Doubles values_of(const Tensor& x) { return to(to(x.detach(), cpu), DType::f64).to_vector<double>(); }

/// Compares NaN with NaN, and other numbers within `relative`.
void expect_values(const Doubles& found, const Doubles& expected, double relative, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(found[i])) << where << ", element " << i << ": " << found[i];
    else if (std::isinf(expected[i]))
      EXPECT_EQ(found[i], expected[i]) << where << ", element " << i;
    else
      EXPECT_LE(std::abs(found[i] - expected[i]), relative * std::abs(expected[i])) << where << ", element " << i;
  }
}
double rounding_of(DType dtype) { return std::ldexp(8.0, -significant_bits(dtype)); }

/// The gradient of <weights, function(x)> with respect to x, with and without create_graph.
void expect_gradient(const std::function<Tensor(const Tensor&)>& function, const Doubles& at, const Doubles& weights,
                     const Doubles& expected, const std::string& where, std::initializer_list<DType> dtypes = {}) {
  for (const DType dtype :
       dtypes.size() ? std::vector<DType>(dtypes) : std::vector<DType>(std::begin(floating), std::end(floating)))
    for (const bool create_graph : {false, true}) {
      const Tensor x = leaf(at, dtype), y = function(x);
      const Tensor seed = to(to(from_data(weights, {static_cast<std::int64_t>(weights.size())}), dtype), suite.device);
      const Tensor found = grad({y}, {x}, {reshape(seed, y.shape())}, {.create_graph = create_graph})[0];
      expect_values(values_of(found), expected, rounding_of(dtype),
                    where + " in " + std::string(to_string(dtype)) + (create_graph ? ", create_graph" : ""));
    }
}

TEST(SpecialValues, ScansIgnoreLaterElements) {
  for (const double later : {inf, -inf, nan_value})
    for (const std::int64_t before : {1, 2, 5}) {
      Doubles x(static_cast<std::size_t>(before), 1.0), first(x.size(), 0.0);
      first[0] = 1;
      x.insert(x.end(), {later, 2});
      Doubles weights = first, expected = first;
      weights.resize(x.size());
      expected.resize(x.size());
      const std::string where = std::to_string(before) + " ones, then " + std::to_string(later);
      expect_gradient([](const Tensor& in) { return logcumsumexp(in, 0); }, x, weights, expected,
                      "logcumsumexp, " + where);
      expect_gradient([](const Tensor& in) { return cumprod(in, 0); }, x, weights, expected, "cumprod, " + where);
      expect_gradient([](const Tensor& in) { return cumsum(in, 0); }, x, weights, expected, "cumsum, " + where);
    }
  const auto running = [](const Tensor& in) { return logcumsumexp(in, 0); };
  expect_gradient(running, {1, inf, 2}, {1, 1, 1}, {1, 2, 0}, "infinity takes all that follows");
  expect_gradient(running, {1, nan_value, 2}, {1, 1, 1}, {nan_value, nan_value, nan_value}, "NaN reaches all");
  const auto product = [](const Tensor& in) { return cumprod(in, 0); };
  expect_gradient(product, {2, inf, 3}, {0, 0, 1}, {inf, 6, inf}, "outputs before the last have no weight");
  expect_gradient(product, {2, 3, 4}, {1, 1, 1}, {16, 10, 6}, "ordinary numbers");
}

TEST(SpecialValues, RowsOfZeroWeightHaveNoGradientInReductions) {
  using Function = std::function<Tensor(const Tensor&)>;
  const std::pair<const char*, Function> functions[] = {{"logsumexp", [](const Tensor& x) { return logsumexp(x, -1); }},
                                                        {"sum", [](const Tensor& x) { return sum(x, -1); }},
                                                        {"mean", [](const Tensor& x) { return mean(x, -1); }},
                                                        {"prod", [](const Tensor& x) { return prod(x, -1); }},
                                                        {"var", [](const Tensor& x) { return var(x, -1); }},
                                                        {"stddev", [](const Tensor& x) { return stddev(x, -1); }},
                                                        {"max", [](const Tensor& x) { return max(x, -1); }},
                                                        {"min", [](const Tensor& x) { return min(x, -1); }},
                                                        {"norm 0", [](const Tensor& x) { return norm(x, 0.0, -1); }},
                                                        {"norm 1/2", [](const Tensor& x) { return norm(x, 0.5, -1); }},
                                                        {"norm 1", [](const Tensor& x) { return norm(x, 1.0, -1); }},
                                                        {"norm 2", [](const Tensor& x) { return norm(x, 2.0, -1); }},
                                                        {"norm 3", [](const Tensor& x) { return norm(x, 3.0, -1); }},
                                                        {"norm inf", [](const Tensor& x) { return norm(x, inf, -1); }}};
  for (const auto& [name, function] : functions)
    for (const Doubles& spoiled : {Doubles{inf, 1, 2}, {-inf, inf, inf}, {nan_value, 1, 2}, {0, inf, nan_value}}) {
      const Doubles good = {1, 2, 4};
      const auto gradient_of = [&, &reduce = function](const Doubles& row) {
        const Tensor x = leaf(row);
        return values_of(grad({sum(reduce(reshape(x, {1, 3})))}, {x})[0]);
      };
      Doubles x = good, expected = gradient_of(good);
      x.insert(x.end(), spoiled.begin(), spoiled.end());
      expected.insert(expected.end(), 3, 0.0);
      const auto rows = [&reduce = function](const Tensor& in) { return reduce(reshape(in, {2, 3})); };
      expect_gradient(rows, x, {1, 0}, expected, name, {DType::f64});
    }
}

TEST(SpecialValues, LogSumExpSplitsItsGradientAmongInfinities) {
  const auto function = [](const Tensor& x) { return logsumexp(x, -1); };
  expect_gradient(function, {1, inf, -inf}, {2}, {0, 2, 0}, "one infinity");
  expect_gradient(function, {inf, 1, inf}, {1}, {0.5, 0, 0.5}, "two");
  expect_gradient(function, {-inf, -inf}, {1}, {0, 0}, "none at all");
  expect_gradient(function, {nan_value, 1}, {1}, {nan_value, nan_value}, "NaN");
}

// The table of docs/reference/operators.md.
TEST(SpecialValues, PiecewiseOperatorsFollowTheDocumentedTable) {
  using Function = std::function<Tensor(const Tensor&)>;
  const Doubles at = {nan_value, -inf, -1, -0.0, 0, 1, inf};
  const struct {
    const char* name;
    Function function;
    Doubles value, gradient;
  } rows[] = {{"abs", abs, {nan_value, inf, 1, 0, 0, 1, inf}, {nan_value, -1, -1, 0, 0, 1, 1}},
              {"sign", sign, {nan_value, -1, -1, 0, 0, 1, 1}, {0, 0, 0, 0, 0, 0, 0}},
              {"floor", floor, {nan_value, -inf, -1, 0, 0, 1, inf}, {0, 0, 0, 0, 0, 0, 0}},
              {"ceil", ceil, {nan_value, -inf, -1, 0, 0, 1, inf}, {0, 0, 0, 0, 0, 0, 0}},
              {"round", round, {nan_value, -inf, -1, 0, 0, 1, inf}, {0, 0, 0, 0, 0, 0, 0}},
              {"relu", relu, {nan_value, 0, 0, 0, 0, 1, inf}, {1, 0, 0, 0, 0, 1, 1}},
              {"leaky_relu",
               [](const Tensor& x) { return leaky_relu(x, 0.5); },
               {nan_value, -inf, -0.5, 0, 0, 1, inf},
               {0.5, 0.5, 0.5, 0.5, 0.5, 1, 1}},
              {"clamp",
               [](const Tensor& x) { return clamp(x, -1.0, 1.0); },
               {nan_value, -1, -1, 0, 0, 1, 1},
               {1, 0, 1, 1, 1, 1, 0}},
              {"maximum, a number",
               [](const Tensor& x) { return maximum(x, 0.0); },
               {nan_value, 0, 0, 0, 0, 1, inf},
               {1, 0, 0, 0.5, 0.5, 1, 1}},
              {"maximum, NaN",
               [](const Tensor& x) { return maximum(x, nan_value); },
               Doubles(7, nan_value),
               {0.5, 0, 0, 0, 0, 0, 0}},
              {"minimum, a number",
               [](const Tensor& x) { return minimum(0.0, x); },
               {nan_value, -inf, -1, 0, 0, 0, 0},
               {1, 1, 1, 0.5, 0.5, 0, 0}},
              {"minimum, NaN",
               [](const Tensor& x) { return minimum(nan_value, x); },
               Doubles(7, nan_value),
               {0.5, 0, 0, 0, 0, 0, 0}}};
  for (const auto& row : rows) {
    expect_gradient(row.function, at, Doubles(at.size(), 1.0), row.gradient, row.name);
    for (const DType dtype : floating) expect_values(values_of(row.function(leaf(at, dtype))), row.value, 0, row.name);
  }
  for (const auto& [name, function] : {std::pair<const char*, Function>{"max", [](const Tensor& x) { return max(x); }},
                                       {"min", [](const Tensor& x) { return min(x); }}}) {
    expect_gradient(function, {nan_value, 1, nan_value}, {1}, {0.5, 0, 0.5}, name);
    expect_gradient(function, {2, 2, 2, 2}, {1}, {0.25, 0.25, 0.25, 0.25}, name);
  }
  expect_gradient([](const Tensor& x) { return norm(x, inf); }, {nan_value, 1}, {1}, {nan_value, 0}, "norm inf");
  expect_gradient([](const Tensor& x) { return norm(x, inf); }, {3, -3, 0}, {1}, {0.5, -0.5, 0}, "norm inf");
  expect_gradient([](const Tensor& x) { return norm(x, 1.0); }, {nan_value, 0, -2}, {1}, {nan_value, 0, -1}, "norm 1");
  expect_gradient([](const Tensor& x) { return sort(x).values; }, {nan_value, 1, 0}, {1, 2, 3}, {3, 2, 1}, "sort");
  for (const auto& [name, pool] : {std::pair<const char*, Function>{"max_pool1d",
                                                                    [](const Tensor& x) {
                                                                      return max_pool1d(reshape(x, {1, 1, 3}), 3);
                                                                    }},
                                   {"max_pool2d", [](const Tensor& x) {
                                      return max_pool2d(reshape(x, {1, 1, 1, 3}), {1, 3});
                                    }}}) {
    expect_gradient(pool, {1, nan_value, 2}, {1}, {0, 1, 0}, name);
    expect_gradient(pool, {1, 2, 2}, {1}, {0, 0.5, 0.5}, name);
  }
  const auto of_pair = [](Tensor (*function)(const Tensor&, const Tensor&)) {
    return [function](const Tensor& x) { return function(select(x, 0, 0), select(x, 0, 1)); };
  };
  const Doubles both(2, nan_value);
  for (const auto& function : {of_pair([](const Tensor&a, const Tensor&b) { return maximum(a, b); }),
                               of_pair([](const Tensor&a, const Tensor&b) { return minimum(a, b); })}) {
    expect_gradient(function, {nan_value, 0}, {1}, {1, 0}, "NaN on the left");
    expect_gradient(function, {0, nan_value}, {1}, {0, 1}, "NaN on the right");
    expect_gradient(function, both, {1}, {0.5, 0.5}, "NaN on both sides");
    expect_gradient(function, {1, 1}, {1}, {0.5, 0.5}, "equals");
  }
  for (const auto& loss : {of_pair([](const Tensor&a, const Tensor&b) { return l1_loss(a, b); }),
                           of_pair([](const Tensor&a, const Tensor&b) { return huber_loss(a, b); })})
    expect_gradient(loss, {nan_value, 0}, {1}, both, "a loss");
  EXPECT_EQ(argmax(leaf({1, nan_value, 2})).item(), 1.0);
  EXPECT_EQ(argmin(leaf({1, nan_value, 2})).item(), 1.0);
}

TEST(SpecialValues, NormsNeitherOverflowNorUnderflow) {
  const auto check = [](DType dtype, double scale) {
    for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0, 40.0, inf})
      for (const Dims& dims : {Dims{}, Dims{1}})
        for (const bool create_graph : {false, true}) {
          const double x0 = 3, x1 = 4;
          const double length = p == inf ? x1 : std::pow(std::pow(x0, p) + std::pow(x1, p), 1 / p);
          const auto slope = [&](double x) { return p == inf ? (x == x1 ? 1.0 : 0.0) : std::pow(x / length, p - 1); };
          const Tensor x = leaf({x0 * scale, 0, -x1 * scale}, dtype), found = norm(reshape(x, {1, 3}), p, dims);
          const std::string where = "p " + std::to_string(p) + ", scale " + std::to_string(std::log2(scale)) + " in " +
                                    std::string(to_string(dtype));
          const double allowed = 16 * rounding_of(dtype);
          expect_values(values_of(found), {length * scale}, allowed, where);
          expect_values(values_of(grad({sum(found)}, {x}, {}, {.create_graph = create_graph})[0]),
                        {slope(x0), 0, -slope(x1)}, allowed, where);
        }
  };
  for (const int exponent : {0, 660, 1000, -560, -1000}) check(DType::f64, std::ldexp(1.0, exponent));
  for (const int exponent : {0, 70, 120, -70, -120}) check(DType::f32, std::ldexp(1.0, exponent));
  for (const int exponent : {0, 120, -120}) check(DType::bf16, std::ldexp(1.0, exponent));
  for (const int exponent : {0, 10, -10}) check(DType::f16, std::ldexp(1.0, exponent));
  // Subnormal numbers and the largest numbers.
  expect_values(values_of(norm(leaf({3e-310, 4e-310}))), {5e-310}, 1e-12, "subnormal");
  expect_gradient([](const Tensor& x) { return norm(x); }, {3e-310, 4e-310}, {1}, {0.6, 0.8}, "subnormal",
                  {DType::f64});
  expect_values(values_of(norm(leaf({std::numeric_limits<double>::max(), 1}))), {std::numeric_limits<double>::max()}, 0,
                "largest");
}

TEST(SpecialValues, NormsFollowTheConventionsOfVectorNorm) {
  for (const DType dtype : floating) {
    const Tensor x = leaf({0, -2, 0, nan_value, inf, 1}, dtype);
    EXPECT_EQ(values_of(norm(x, 0.0)), Doubles{4}) << "NaN is not 0";
    EXPECT_EQ(norm(x, 0.0).dtype(), dtype);
    for (const double p : {0.5, 1.0, 2.0, 3.0, inf}) {
      EXPECT_TRUE(std::isnan(values_of(norm(x, p))[0])) << p;
      EXPECT_EQ(values_of(norm(leaf({1, -inf}, dtype), p)), Doubles{inf}) << p;
      EXPECT_EQ(values_of(norm(leaf({0, 0}, dtype), p)), Doubles{0}) << p;
      EXPECT_EQ(values_of(norm(leaf({}, dtype), p)), Doubles{0}) << p;
      EXPECT_EQ(values_of(norm(reshape(leaf({}, dtype), {2, 0}), p, -1)), (Doubles{0, 0})) << p;
      expect_gradient([p](const Tensor& in) { return norm(in, p); }, {}, {1}, {}, "norm of nothing", {dtype});
      EXPECT_EQ(norm(reshape(leaf({1, 2, 3, 4}, dtype), {2, 2}), p, {0}, true).shape(), (Shape{1, 2}));
      expect_gradient([p](const Tensor& in) { return norm(in, p); }, {0, 0}, {1}, {0, 0}, "norm at 0", {dtype});
    }
    expect_gradient([](const Tensor& in) { return norm(in, 0.0); }, {0, 3, -2}, {1}, {0, 0, 0}, "norm 0", {dtype});
  }
  EXPECT_THROW(norm(leaf({1}), -1.0), ValueError);
  EXPECT_THROW(norm(leaf({1}), nan_value), ValueError);
}

TEST(SpecialValues, TheHessianOfANormIsZeroAtZeroAndExactElsewhere) {
  for (const double p : {0.5, 1.0, 1.5, 2.0, 3.0, inf}) {
    const auto function = [p](const Tensor& x) { return norm(x, p); };
    EXPECT_EQ(values_of(hessian(function, leaf({0, 0}).detach())), Doubles(4, 0.0)) << p;
  }
  const auto length = [](const Tensor& x) { return norm(x); };
  for (const double scale : {1.0, 0x1p660, 0x1p-560})
    expect_values(values_of(hessian(length, leaf({3 * scale, 4 * scale}).detach())),
                  {0.128 / scale, -0.096 / scale, -0.096 / scale, 0.072 / scale}, 1e-14, "3, 4");
}

TEST(SpecialValues, DeviationsNeitherOverflowNorUnderflow) {
  for (const auto& [dtype, exponent] : {std::pair{DType::f64, 660},
                                        {DType::f64, -560},
                                        {DType::f32, 70},
                                        {DType::f32, -70},
                                        {DType::bf16, 70},
                                        {DType::f16, 10}}) {
    const double scale = std::ldexp(1.0, exponent), root = std::sqrt(0.5);
    const Tensor x = leaf({scale, 2 * scale}, dtype), found = stddev(x);
    expect_values(values_of(found), {root * scale}, rounding_of(dtype), "value");
    expect_values(values_of(grad({found}, {x})[0]), {-root, root}, rounding_of(dtype), "gradient");
  }
  expect_gradient([](const Tensor& x) { return stddev(x); }, {2, 2, 2}, {1}, {0, 0, 0}, "no deviation");
}

// Second derivatives of fused norms use their definition, which must be valid at the same scales.
TEST(SpecialValues, GradientsOfNormalizedRowsDoNotDependOnTheirScale) {
  for (const bool centered : {false, true})
    for (const auto& [dtype, exponent] :
         {std::pair{DType::f64, 700}, {DType::f64, -700}, {DType::f32, 80}, {DType::f32, -55}, {DType::bf16, 80}})
      for (const bool create_graph : {false, true}) {
        const double scale = std::ldexp(1.0, exponent);
        const auto gradient_at = [&, type = dtype](double factor) {
          const Tensor x = leaf({1 * factor, 2 * factor, 4 * factor, -1 * factor}, type), rows = reshape(x, {1, 4});
          const Tensor y = centered ? layer_norm(rows, {}, {}, 0.0) : rms_norm(rows, {}, 0.0);
          const Tensor weights = reshape(leaf({1, -2, 3, 0.5}, type).detach(), {1, 4});
          return grad({y}, {x}, {weights}, {.create_graph = create_graph})[0];
        };
        Doubles expected = values_of(gradient_at(1));
        for (double& value : expected) value /= scale;
        expect_values(values_of(gradient_at(scale)), expected, rounding_of(dtype), std::to_string(exponent));
      }
}

TEST(SpecialValues, ZeroWeightsKeepTheirSecondDerivatives) {
  // d2 <w, lse(x)> / dw dx is softmax(x), at w = 0 too.
  const Tensor x = leaf({1, 2}), w = leaf({0});
  const Tensor first = grad({logsumexp(x, -1)}, {x}, {reshape(w, {})}, {.create_graph = true})[0];
  const double e = std::exp(1.0);
  expect_values(values_of(grad({sum(first * leaf({1, 0}).detach())}, {w})[0]), {1 / (1 + e)}, 1e-14, "softmax");
}

}  // namespace
}  // namespace poolgrad::testing
