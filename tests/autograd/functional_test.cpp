// Derivatives of functions, compared with closed forms, with differences and with each other.
#include "autograd/functional.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/print.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;
using testing_support::error_of;

Tensor numbers(std::initializer_list<double> values, const Shape& shape = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  return from_data<double>(values, shape.rank() == 0 ? Shape{count} : shape);
}

/// Two tensors to two: smooth, with mixed terms, of unequal shapes.
std::vector<Tensor> mixed(const std::vector<Tensor>& in) {
  const Tensor product = matmul(in[0], in[1]);  // (2, 3) x (3) -> (2)
  return {tanh(product) * sum(in[0]), exp(in[1] * 0.3)};
}

std::vector<Tensor> point() { return {numbers({0.3, -0.2, 0.5, 0.1, 0.4, -0.6}, {2, 3}), numbers({0.7, -0.4, 0.2})}; }

/// (f(x + h v) - f(x - h v)) / 2h of each output.
std::vector<Tensor> directional_difference(const TensorFunction& f, const std::vector<Tensor>& x,
                                           const std::vector<Tensor>& v) {
  constexpr double h = 1e-5;
  std::vector<Tensor> high, low;
  for (std::size_t i = 0; i < x.size(); ++i) {
    high.push_back(x[i] + v[i] * h);
    low.push_back(x[i] - v[i] * h);
  }
  std::vector<Tensor> above = f(high), below = f(low);
  for (std::size_t i = 0; i < above.size(); ++i) above[i] = (above[i] - below[i]) / (2 * h);
  return above;
}

double inner(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += sum(a[i] * b[i]).item();
  return total;
}

TEST(Jvp, IsTheDirectionalDerivative) {
  const std::vector<Tensor> x = point(), v{numbers({1, -1, 0.5, 2, 0, 0.3}, {2, 3}), numbers({-1, 0.2, 0.6})};
  const auto [y, slope] = jvp(mixed, x, v);
  const std::vector<Tensor> expected = directional_difference(mixed, x, v), plain = mixed(x);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(bit_equal(y[i], plain[i]));
    EXPECT_TRUE(allclose(slope[i], expected[i], 1e-8, 1e-9)) << to_string(slope[i]) << to_string(expected[i]);
    EXPECT_FALSE(slope[i].requires_grad());
  }
}

TEST(Vjp, IsTheTransposeOfJvp) {
  const std::vector<Tensor> x = point(), v{numbers({1, -1, 0.5, 2, 0, 0.3}, {2, 3}), numbers({-1, 0.2, 0.6})};
  const std::vector<Tensor> w{numbers({0.4, -2}), numbers({1, 3, -0.5})};
  const double forward = inner(w, jvp(mixed, x, v).second), backward = inner(vjp(mixed, x, w).second, v);
  EXPECT_NEAR(forward, backward, 1e-14 * std::abs(forward));
}

TEST(Jvp, HasItsClosedFormLikeVjp) {
  const Tensor x = numbers({0.5, -1, 2}), v = numbers({1, 10, -3});
  const auto cube = [](const Tensor& t) { return t * t * t; };
  EXPECT_TRUE(allclose(jvp(cube, x, v).second, 3.0 * x * x * v, 1e-14, 0));
  EXPECT_TRUE(allclose(vjp(cube, x, v).second, 3.0 * x * x * v, 1e-14, 0));
  EXPECT_TRUE(bit_equal(vjp(cube, x, v).first, cube(x)));
}

TEST(Jacobian, HasARowForEveryOutputElement) {
  const std::vector<Tensor> x = point();
  const std::vector<std::vector<Tensor>> j = jacobian(mixed, x);
  EXPECT_EQ(j[0][0].shape(), Shape({2, 2, 3}));
  EXPECT_EQ(j[0][1].shape(), Shape({2, 3}));
  EXPECT_EQ(j[1][1].shape(), Shape({3, 3}));
  EXPECT_TRUE(bit_equal(j[1][0], zeros({3, 2, 3}, {.dtype = DType::f64}))) << "no influence";
  for (std::int64_t k = 0; k < 6; ++k) {  // one column at a time
    std::vector<Tensor> v{zeros({2, 3}, {.dtype = DType::f64}), zeros({3}, {.dtype = DType::f64})};
    v[0].alias({.shape = {}, .strides = {}, .offset = k}).fill(1);
    const Tensor column = directional_difference(mixed, x, v)[0];
    EXPECT_TRUE(allclose(select(reshape(j[0][0], {2, 6}), 1, k), column, 1e-8, 1e-9)) << k;
  }
}

TEST(Jacobian, HasAsManyDimensionsAsATensorMayHave) {
  const Shape eight{2, 1, 2, 1, 1, 1, 1, 2};
  const Tensor x = reshape(arange(0, 8, 1, {.dtype = DType::f64}), eight);
  const Tensor found = jacobian([](const Tensor& in) { return sum(square(in)); }, x);
  EXPECT_EQ(found.shape(), eight);
  EXPECT_THAT(found.to_vector<double>(), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14));
}

TEST(Jacobian, EqualsTheMatrixOfALinearMap) {
  const Tensor a = randn({4, 3}, {.dtype = DType::f64});
  EXPECT_TRUE(bit_equal(jacobian([&](const Tensor& x) { return matmul(a, x); }, numbers({1, 2, 3})), a));
}

TEST(Jacobian, HasTheShapesOfScalarsAndEmptyTensors) {
  const Tensor number = full({}, 3.0, {.dtype = DType::f64}), empty = zeros({0, 2}, {.dtype = DType::f64});
  const Tensor slope = jacobian([](const Tensor& x) { return x * x; }, number);
  EXPECT_EQ(slope.shape(), Shape({}));
  EXPECT_EQ(slope.item(), 6.0);
  EXPECT_EQ(jacobian([](const Tensor& x) { return exp(x); }, empty).shape(), Shape({0, 2, 0, 2}));
  EXPECT_EQ(jacobian([](const Tensor& x) { return sum(x); }, empty).shape(), Shape({0, 2}));
}

TEST(Jacobian, AcceptsHalfTypesAndViews) {
  const Tensor half = to(numbers({0.5, 2}), DType::bf16);
  const Tensor slope = jacobian([](const Tensor& x) { return x * x; }, half);
  EXPECT_EQ(slope.dtype(), DType::bf16);
  EXPECT_THAT(slope.to_vector<double>(), ElementsAre(1, 0, 0, 4));
  const Tensor matrix = randn({3, 2}, {.dtype = DType::f64}), turned = transpose(matrix, 0, 1);
  const auto f = [](const Tensor& x) { return exp(sum(x * x, Dims{0})); };
  EXPECT_TRUE(allclose(jacobian(f, turned), jacobian(f, turned.copy()), 1e-14, 0));
}

/// x^T A x / 2 + sum(cos x), whose Hessian is (A + A^T) / 2 - diag(cos x).
struct Bowl {
  Tensor a = randn({3, 3}, {.dtype = DType::f64});
  Tensor operator()(const Tensor& x) const { return sum(x * matmul(a, x)) * 0.5 + sum(cos(x)); }
  Tensor curvature(const Tensor& x) const {
    Tensor h = (a + transpose(a, 0, 1)) * 0.5;
    const std::vector<double> at = x.to_vector<double>();
    for (std::int64_t i = 0; i < 3; ++i) {
      Tensor diagonal = h.alias({.shape = {}, .strides = {}, .offset = 4 * i});
      diagonal.fill(diagonal.item() - std::cos(at[static_cast<std::size_t>(i)]));
    }
    return h;
  }
};

TEST(Hessian, HasItsClosedForm) {
  const Bowl bowl;
  const Tensor x = numbers({0.2, -1.5, 3}), v = numbers({1, -2, 0.5});
  EXPECT_TRUE(allclose(hessian(bowl, x), bowl.curvature(x), 1e-13, 1e-14));
  const auto [value, product] = hessian_vector_product(bowl, x, v);
  EXPECT_TRUE(bit_equal(value, bowl(x)));
  EXPECT_TRUE(allclose(product, matmul(bowl.curvature(x), v), 1e-13, 1e-14));
}

TEST(Hessian, HasABlockForEachPairOfInputs) {
  const auto f = [](const std::vector<Tensor>& in) { return std::vector{sum(exp(in[0]) * in[1] * in[1])}; };
  const std::vector<Tensor> x{numbers({0.1, -0.5}), numbers({2, 3})};
  const std::vector<std::vector<Tensor>> h = hessian(f, x);
  const Tensor eye = numbers({1, 0, 0, 1}, {2, 2}), mixed_part = eye * (2.0 * exp(x[0]) * x[1]);
  EXPECT_TRUE(allclose(h[0][0], eye * (exp(x[0]) * x[1] * x[1]), 1e-14, 0));
  EXPECT_TRUE(allclose(h[0][1], mixed_part, 1e-14, 0));
  EXPECT_TRUE(allclose(h[1][0], mixed_part, 1e-14, 0));
  EXPECT_TRUE(allclose(h[1][1], eye * (2.0 * exp(x[0])), 1e-14, 0));
  const std::vector<Tensor> v{numbers({1, 2}), numbers({-1, 0.5})};
  const std::vector<Tensor> product = hessian_vector_product(f, x, v).second;
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(allclose(product[i], matmul(h[i][0], v[0]) + matmul(h[i][1], v[1]), 1e-14, 0)) << i;
}

TEST(Hessian, IsZeroForALinearFunction) {
  const Tensor x = numbers({1, 2});
  const auto linear_part = [](const Tensor& t) { return sum(t * 3.0); };
  EXPECT_TRUE(bit_equal(hessian(linear_part, x), zeros({2, 2}, {.dtype = DType::f64})));
  EXPECT_TRUE(bit_equal(hessian_vector_product(linear_part, x, x).second, zeros({2}, {.dtype = DType::f64})));
}

TEST(Vmap, CallsAFunctionForEverySliceAndStacksTheResults) {
  const Tensor a = numbers({1, 2, 3, 4, 5, 6}, {2, 3}), b = numbers({10, 20});
  const auto dot = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{matmul(in[0], in[0]) + in[1], in[0]};
  };
  const std::vector<Tensor> found = vmap(dot, {a, b});
  EXPECT_TRUE(bit_equal(found[0], numbers({24, 97})));
  EXPECT_TRUE(bit_equal(found[1], a));
  const auto twice = [](const Tensor& column) { return column * 2.0; };
  EXPECT_TRUE(bit_equal(vmap(twice, a, -1), contiguous(transpose(a * 2.0, 0, 1))));
  EXPECT_TRUE(bit_equal(vmap(twice, a, 1, 1), a * 2.0));
}

TEST(Vmap, GivesTheGradientOfEveryExampleAndCanBeDifferentiated) {
  const Tensor w = numbers({0.5, -1, 2}), x = numbers({1, 2, 3, 4, 5, 6}, {2, 3}).set_requires_grad();
  const auto gradient = [&](const Tensor& example) {
    const Tensor weight = w.detach().set_requires_grad();
    return grad({square(sum(weight * example))}, {weight}, {}, {.create_graph = true})[0];
  };
  const Tensor each = vmap(gradient, x);
  for (std::int64_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(each[i], x[i] * (2.0 * sum(w * x[i]))));
  sum(vmap([](const Tensor& row) { return sum(square(row)); }, x)).backward();
  EXPECT_TRUE(bit_equal(x.grad(), x.detach() * 2.0));
}

TEST(Vmap, RejectsInputsWithoutSlices) {
  const auto same = [](const std::vector<Tensor>& in) { return in; };
  EXPECT_EQ(error_of<ShapeError>([&] {
              vmap(same, {ones({2, 3}), ones({3})});
            }),
            "[vmap] inputs need the same number of slices, at least one, along dimension 0: input 0 (2, 3) f32 on cpu, "
            "input 1 (3,) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] {
              vmap(same, {ones({0, 3})});
            }),
            "[vmap] inputs need the same number of slices, at least one, along dimension 0: input 0 (0, 3) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { vmap(same, {}); }),
            "[vmap] inputs need the same number of slices, at least one, along dimension 0: no inputs");
  EXPECT_EQ(error_of<IndexError>([&] { vmap(same, {ones({})}); }), "[vmap] dimension 0 is out of range for shape ()");
  int calls = 0;
  const auto fickle = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>(static_cast<std::size_t>(++calls), in[0]);
  };
  EXPECT_EQ(error_of<ValueError>([&] { vmap(fickle, {ones({2})}); }),
            "[vmap] the function returned 2 outputs for slice 1, and 1 for slice 0");
}

TEST(Functional, LeavesGradientsAndMemoryUnchanged) {
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const std::int64_t nodes = live_node_count();
  Tensor x = numbers({1, 2}).set_requires_grad(), weight = numbers({3, 4}).set_requires_grad();
  const auto before = live();
  const auto f = [&](const Tensor& t) { return sum(t * t * weight); };
  hessian(f, x), jacobian(f, x), jvp(f, x, weight), hessian_vector_product(f, x, weight);
  EXPECT_FALSE(x.grad().defined() || weight.grad().defined());
  EXPECT_EQ(live(), before);
  EXPECT_EQ(live_node_count(), nodes);
}

TEST(Functional, WorksWithGradModeOff) {
  const NoGradGuard no_grad;
  const auto f = [](const Tensor& t) { return sum(t * t * t); };
  EXPECT_THAT(hessian(f, numbers({2})).to_vector<double>(), ElementsAre(12));
  EXPECT_FALSE(grad_enabled());
}

// A gradient penalty minimizes the norm of a Jacobian.
TEST(Functional, ResultsAreDifferentiableWhereAsked) {
  const auto penalty = [](const std::vector<Tensor>& in) {
    const auto layer = [&](const Tensor& t) { return tanh(matmul(in[1], t)); };
    const auto [y, slope] = jvp(layer, in[0], ones_like(in[0]), true);
    return std::vector{sum(square(jacobian(layer, in[0], true))), slope, y};
  };
  const std::vector<Tensor> in{numbers({0.3, -0.7}).set_requires_grad(),
                               numbers({0.1, 0.5, -0.4, 0.2}, {2, 2}).set_requires_grad()};
  const GradcheckReport report = gradcheck(penalty, in);
  EXPECT_TRUE(report) << report.text;
  const GradcheckReport second = gradcheck(
      [](const auto& x) { return std::vector{hessian([](const Tensor& t) { return sum(exp(t * t)); }, x[0], true)}; },
      {in[0]});
  EXPECT_TRUE(second) << second.text;
}

TEST(Functional, IsZeroForAConstantOutput) {
  const Tensor x = numbers({1, 2}), constant = numbers({5});
  const auto f = [&](const Tensor&) { return constant; };
  EXPECT_TRUE(bit_equal(jacobian(f, x), zeros({1, 2}, {.dtype = DType::f64})));
  EXPECT_TRUE(bit_equal(jvp(f, x, x).second, zeros({1}, {.dtype = DType::f64})));
  EXPECT_TRUE(bit_equal(vjp(f, x, constant).second, zeros({2}, {.dtype = DType::f64})));
}

TEST(Functional, RejectsMismatchedVectors) {
  const Tensor x = numbers({1, 2}), index = arange(0, 2, 1, {.dtype = DType::i64});
  const auto square_of = [](const Tensor& t) { return t * t; };
  EXPECT_EQ(error_of<ShapeError>([&] {
              jvp(square_of, x, numbers({1, 2, 3}));
            }),
            "[jvp] the vector is unlike input 0: vector (3,) f64 on cpu, input (2,) f64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { vjp(square_of, x, ones({2})); }),
            "[vjp] the vector is unlike output 0: vector (2,) f32 on cpu, output (2,) f64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { vjp(mixed, point(), {x}); }), "[vjp] 1 vector for 2 outputs");
  EXPECT_EQ(error_of<ValueError>([&] { jvp(square_of, x, Tensor()); }),
            "[jvp] the vector is unlike input 0: vector undefined, input (2,) f64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { jacobian(square_of, index); }),
            "[jacobian] input 0 has no derivative: (2,) i64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { jacobian([&](const Tensor&) { return index; }, x); }),
            "[jacobian] output 0 has no derivative: (2,) i64 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { hessian(square_of, x); }),
            "[hessian] the function must give one tensor of one element: (2,) f64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { jacobian(square_of, Tensor()); }), "[jacobian] input 0 is undefined");
}

}  // namespace
}  // namespace poolgrad
