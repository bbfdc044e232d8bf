#include <functional>
#include <initializer_list>
#include <utility>

#include "autograd/operators.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad::testing {
namespace {

using UnaryFunction = std::function<Tensor(const Tensor&)>;
using BinaryFunction = std::function<Tensor(const Tensor&, const Tensor&)>;

/// The domain of an operator: random points are drawn from [low, high].
struct Range {
  double low, high;
};
constexpr Range anywhere{-3.0, 3.0}, positive{0.2, 4.0};

Operator unary(std::string name, std::string record, UnaryFunction function, Range range,
               std::initializer_list<double> special) {
  Numbers numbers(17);
  const auto random = [&](const Shape& shape) { return numbers.between(range.low, range.high, shape); };
  return {.name = std::move(name),
          .records = {std::move(record)},
          .run = [function = std::move(function)](const auto& in) -> std::vector<Tensor> { return {function(in[0])}; },
          .cases = {{"matrix", {random({3, 5})}},
                    {"odd length", {random({37})}},
                    {"no dimensions", {random({})}},
                    {"empty", {random({0, 3})}},
                    {"special points", {Numbers::values(special)}}}};
}

Operator unary(const std::string& name, UnaryFunction function, Range range, std::initializer_list<double> special) {
  return unary(name, name, std::move(function), range, special);
}

Operator binary(const std::string& name, BinaryFunction function, Range left, Range right) {
  Numbers numbers(19);
  const auto pair = [&](const char* label, const Shape& a, const Shape& b) -> OperatorCase {
    return {label, {numbers.between(left.low, left.high, a), numbers.between(right.low, right.high, b)}};
  };
  return {.name = name,
          .records = {name},
          .run = [function = std::move(function)](const auto& in) -> std::vector<Tensor> {
            return {function(in[0], in[1])};
          },
          .cases = {pair("equal shapes", {3, 4}, {3, 4}), pair("row and column", {3, 1}, {4}),
                    pair("a number on the right", {2, 5}, {}), pair("a number on the left", {}, {7}),
                    pair("outer dimensions", {2, 1, 3}, {5, 1}), pair("empty", {0, 3}, {3}),
                    pair("broadcast to empty", {1, 3}, {0, 3})}};
}

}  // namespace

void add_unary(std::vector<Operator>& table) {
  const auto add = [&](Operator entry) { table.push_back(std::move(entry)); };
  add(unary("neg", neg, anywhere, {0, 1, -1, 3e4}));
  add(unary("abs", abs, anywhere, {1, -1, 3e4}));
  add(unary("sign", sign, anywhere, {1, -1, 3e4}));
  add(unary("square", square, anywhere, {0, 1, -1, 100}));
  add(unary("sqrt", sqrt, positive, {1, 0.01, 3e4}));
  add(unary("rsqrt", rsqrt, positive, {1, 0.04, 3e4}));
  add(unary("reciprocal", reciprocal, positive, {1, -1, 0.1, -100}));
  add(unary("exp", exp, anywhere, {0, 1, -1, 6, -12}));
  add(unary("expm1", expm1, anywhere, {0, 1, -1, 1e-3, 6, -12}));
  add(unary("log", log, positive, {1, 0.01, 3e4}));
  add(unary("log1p", log1p, {-0.5, 4.0}, {0, 1, -0.875, 1e-3, 3e4}));
  add(unary("sin", sin, anywhere, {0, 1, -1, 10}));
  add(unary("cos", cos, anywhere, {0, 1, -1, 10}));
  add(unary("log2", log2, positive, {1, 0.01, 3e4}));
  add(unary("log10", log10, positive, {1, 0.01, 3e4}));
  add(unary("exp2", exp2, anywhere, {0, 1, -1, 10, -12}));
  add(unary("tan", tan, {-1.2, 1.2}, {0, 1, -1, 3}));
  add(unary("asin", asin, {-0.9, 0.9}, {0, 0.5, -0.5, 1e-3}));
  add(unary("acos", acos, {-0.9, 0.9}, {0, 0.5, -0.5, 1e-3}));
  add(unary("atan", atan, anywhere, {0, 1, -1, 100}));
  add(unary("sinh", sinh, anywhere, {0, 1, -1, 1e-3, 6}));
  add(unary("cosh", cosh, anywhere, {0, 1, -1, 6}));
  add(unary("tanh", tanh, anywhere, {0, 1, -1, 20, -20}));
  add(unary("sigmoid", sigmoid, anywhere, {0, 1, -1, 30, -12}));
  table.back().rounding = 2.0;  // 1 - y loses digits near 1
  add(unary("erf", erf, anywhere, {0, 1, -1, 1e-3, 6, -6}));
  add(unary("relu", relu, anywhere, {1, -1, 3e4, -3e4}));
  add(unary("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.125); }, anywhere, {1, -1, 3e4, -3e4}));
  add(unary("gelu", [](const Tensor& x) { return gelu(x); }, anywhere, {0, 1, -1, 30, -30}));
  add(unary("gelu_tanh", "gelu", [](const Tensor& x) { return gelu(x, GeluKind::tanh); }, anywhere,
            {0, 1, -1, 30, -30}));
  table.back().rounding = 2.0;  // the derivative is a difference of rounded terms
  add(unary("silu", silu, anywhere, {0, 1, -1, 30, -30}));
  add(unary("mish", mish, anywhere, {0, 1, -1, 30, -12}));
  table.back().rounding = 2.0;  // the derivative is a sum of rounded terms
  add(unary("elu", [](const Tensor& x) { return elu(x, 1.5); }, anywhere, {1, -1, 3e4, -30}));
  add(unary("softplus", softplus, anywhere, {0, 1, -1, 40, -12}));
  add(unary("clamp", [](const Tensor& x) { return clamp(x, -0.6, 1.4); }, anywhere, {0, 1, -1, 3e4, -3e4}));
  add(unary("floor", floor, anywhere, {0.25, 1.5, -1.75}));
  add(unary("ceil", ceil, anywhere, {0.25, 1.5, -1.75}));
  add(unary("round", round, anywhere, {0.25, 1.75, -1.75}));
  add(unary("affine", [](const Tensor& x) { return affine(x, 2.5, -0.75); }, anywhere, {0, 1, -1, 1e4}));
  const auto power = [](double exponent) { return [exponent](const Tensor& x) { return pow(x, exponent); }; };
  add(unary("cube", "power", power(3.0), anywhere, {0, 1, -1, 20}));
  add(unary("inverse square", "power", power(-2.0), positive, {1, -1, 10}));
  add(unary("power one half", "power", power(0.5), positive, {1, 0.01, 100}));
  add(unary("power zero", "power", power(0.0), anywhere, {0, 1, -1, 100}));
  add(unary("power of two", "pow", [](const Tensor& x) { return pow(2.0, x); }, anywhere, {0, 1, -1, 10}));
  add(unary("at least", "maximum", [](const Tensor& x) { return maximum(x, 0.5); }, anywhere, {1, -1, 3e4}));
  add(unary("at most", "minimum", [](const Tensor& x) { return minimum(0.5, x); }, anywhere, {1, -1, 3e4}));
  add(unary("where, a number", "where", [](const Tensor& x) { return where(x > 0.5, x, 0.0) + where(x > 0.0, 2.0, x); },
            anywhere, {1, -1, 3e4}));
  const auto assigned = [](const Tensor& x) {
    Tensor y = x * 3.0;
    y += 1.5;
    y *= -0.5;
    y -= 0.25;
    y /= 4.0;
    return y;
  };
  add(unary("numbers assigned", "affine", assigned, anywhere, {0, 1, -1, 1e4}));
  add(unary("divided", "div", [](const Tensor& x) { return x / 3.0; }, anywhere, {0, 1, -1, 1e4}));
  add(unary("divisor", "reciprocal", [](const Tensor& x) { return 3.0 / x; }, positive, {1, -1, 10}));
  add(unary("clone", clone, anywhere, {0, 1, -1, 3e4}));
  add(unary("contiguous", "clone", [](const Tensor& x) { return x.dim() ? contiguous(transpose(x, 0, -1)) : clone(x); },
            anywhere, {0, 1}));

  // f64 -> f32 -> f64 is the identity except for f32's rounding. A wide step hides the rounding from differences.
  Operator cast =
      unary("cast", [](const Tensor& x) { return to(to(x, DType::f32), DType::f64); }, anywhere, {0, 1, -1});
  cast.gradcheck = {.epsilon = 1.0 / 16, .relative = 1e-5, .absolute = 1e-5};
  cast.run = [](const auto& in) -> std::vector<Tensor> {
    return {to(to(in[0], in[0].dtype() == DType::f64 ? DType::f32 : DType::f64), in[0].dtype())};
  };
  add(cast);
  Operator move = unary("move", [](const Tensor& x) { return to(x, Device{DeviceType::sim, 1}); }, anywhere, {0, 1});
  move.no_numbers = "a simulated device has no numbers";
  add(move);

  Numbers numbers(18);
  add({.name = "dropout",
       .records = {"dropout"},
       .run = [](const auto& in) -> std::vector<Tensor> {
         Generator generator(5);
         return {dropout(in[0], 0.375, generator)};
       },
       .cases = {{"matrix", {numbers.normal({6, 5})}},
                 {"odd length", {numbers.normal({37})}},
                 {"no dimensions", {numbers.normal({})}},
                 {"empty", {numbers.normal({0, 3})}}}});
}

void add_binary(std::vector<Operator>& table) {
  const auto add = [&](Operator entry, std::vector<OperatorCase> more = {}) {
    for (OperatorCase& extra : more) entry.cases.push_back(std::move(extra));
    table.push_back(std::move(entry));
  };
  const auto special = [](std::initializer_list<double> a, std::initializer_list<double> b) {
    return std::vector<OperatorCase>{{"special points", {Numbers::values(a), Numbers::values(b)}}};
  };
  add(binary("add", poolgrad::add, anywhere, anywhere), special({0, 1, -1, 3e4}, {1, 0, -1, 3e4}));
  add(binary("sub", sub, anywhere, anywhere), special({0, 1, -1, 3e4}, {1, 0, -1, 1}));
  add(binary("mul", mul, anywhere, anywhere), special({0, 1, -1, 100}, {1, 0, -1, 100}));
  add(binary("div", div, anywhere, positive), special({0, 1, -1, 100}, {1, -1, 8, -3}));
  add(binary("pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }, positive, {-1.5, 2.0}),
      special({1, 1, 2, 5}, {0, -1, 1, 3}));
  add(binary(
          "maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }, anywhere, anywhere),
      special({0, 1, -1, 3e4}, {1, 0, -2, -3e4}));
  add(binary("atan2", poolgrad::atan2, anywhere, anywhere), special({0, 1, -1, 100}, {1, 0, 2, -3}));
  table.back().rounding = 4.0;
  const auto rest = [&](const std::string& name, Tensor (*function)(TensorArg, const Tensor&)) {
    add(binary(
            name, [function](const Tensor& a, const Tensor& b) { return function(a, b); }, anywhere, positive),
        special({0.5, 7, -7, 7}, {1, 2, 2, -2}));
  };
  rest("fmod", fmod);
  rest("remainder", remainder);
  add(binary(
          "minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); }, anywhere, anywhere),
      special({0, 1, -1, 3e4}, {1, 0, -2, -3e4}));
  const auto assigned = [](const Tensor& a, const Tensor& b) {
    Tensor y = expand(a, *broadcast_shapes(a.shape(), b.shape())) * 2.0;
    y += b;
    y *= b;
    y -= a;
    y /= b;
    return y;
  };
  Operator in_place = binary("assigned", assigned, anywhere, positive);
  in_place.records = {"add", "mul", "sub", "div"};
  in_place.rounding = 8.0;
  add(in_place);
  for (Operator& entry : table)
    if (entry.name == "pow" || entry.name == "div") entry.rounding = 4.0;  // derivatives of three rounded factors

  Numbers numbers(20);
  table.push_back({.name = "clamp by tensors",
                   .records = {"maximum", "minimum"},
                   .run = [](const auto& in) -> std::vector<Tensor> { return {clamp(in[0], in[1], in[2])}; },
                   .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({3, 5}), numbers.normal({3, 5})}},
                             {"broadcast", {numbers.normal({2, 3, 5}), numbers.normal({5}), numbers.normal({3, 1})}},
                             {"empty", {numbers.normal({0, 3}), numbers.normal({3}), numbers.normal({})}}}});
  table.push_back(
      {.name = "silu_mul",
       .records = {"silu_mul"},
       .run = [](const auto& in) -> std::vector<Tensor> { return {silu_mul(in[0], in[1])}; },
       .cases = {{"matrix", {numbers.normal({3, 5}), numbers.normal({3, 5})}},
                 {"odd length", {numbers.normal({37}), numbers.normal({37})}},
                 {"empty", {numbers.normal({0, 3}), numbers.normal({0, 3})}},
                 {"special points", {Numbers::values({0, 1, -1, 30, -30}), Numbers::values({1, 0, -1, 2, 3})}}}});
  table.push_back({.name = "where",
                   .records = {"where", "masked_fill"},
                   .run = [](const auto& in) -> std::vector<Tensor> { return {where(in[0], in[1], in[2])}; },
                   .cases = {{"matrix", {numbers.mask({3, 5}), numbers.normal({3, 5}), numbers.normal({3, 5})}},
                             {"broadcast", {numbers.mask({3, 1}), numbers.normal({5}), numbers.normal({2, 1, 1})}},
                             {"no dimensions", {numbers.mask({}), numbers.normal({}), numbers.normal({})}},
                             {"empty", {numbers.mask({0, 1}), numbers.normal({1, 3}), numbers.normal({})}}}});
  table.push_back({.name = "masked_fill",
                   .records = {"masked_fill"},
                   .run = [](const auto& in) -> std::vector<Tensor> { return {masked_fill(in[0], in[1], -1.5)}; },
                   .cases = {{"matrix", {numbers.normal({3, 5}), numbers.mask({3, 5})}},
                             {"broadcast", {numbers.normal({2, 3, 5}), numbers.mask({3, 1})}},
                             {"no dimensions", {numbers.normal({}), numbers.mask({})}},
                             {"empty", {numbers.normal({0, 3}), numbers.mask({3})}}}});
}

}  // namespace poolgrad::testing
