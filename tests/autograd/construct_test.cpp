// Tensors built from others, norms over dimensions, losses: values worked out by hand or in plain loops.
#include "autograd/operators/construct.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::all_dtypes;
using testing_support::error_of;
using Doubles = std::vector<double>;

constexpr double endless = std::numeric_limits<double>::infinity();
constexpr TensorOptions real{.dtype = DType::f64};

Doubles elements_of(const Tensor& x) { return x.to_vector<double>(); }
Tensor doubles(std::initializer_list<double> numbers) {
  return from_data<double>(numbers, {static_cast<std::int64_t>(numbers.size())});
}
/// 1, 2, 3, ...
Tensor from_one(const Shape& shape, DType dtype = DType::f64) {
  return to(reshape(arange(1.0, static_cast<double>(count(shape)) + 1.0, 1.0, real), shape), dtype);
}

TEST(Triangles, KeepOneSideOfTheDiagonalInEveryDtype) {
  EXPECT_EQ(elements_of(tril(from_one({2, 3}))), (Doubles{1, 0, 0, 4, 5, 0}));
  EXPECT_EQ(elements_of(tril(from_one({2, 3}), 1)), (Doubles{1, 2, 0, 4, 5, 6}));
  EXPECT_EQ(elements_of(tril(from_one({2, 3}), -1)), (Doubles{0, 0, 0, 4, 0, 0}));
  EXPECT_EQ(elements_of(triu(from_one({2, 3}))), (Doubles{1, 2, 3, 0, 5, 6}));
  EXPECT_EQ(elements_of(triu(from_one({2, 3}), 2)), (Doubles{0, 0, 3, 0, 0, 0}));
  EXPECT_EQ(elements_of(triu(from_one({2, 3}), -9)), elements_of(from_one({2, 3})));
  EXPECT_EQ(elements_of(tril(from_one({2, 2, 2}))), (Doubles{1, 0, 3, 4, 5, 0, 7, 8}));
  for (const DType dtype : all_dtypes)
    EXPECT_EQ(elements_of(tril(ones({2, 2}, {.dtype = dtype}))), (Doubles{1, 0, 1, 1}));
  EXPECT_EQ(elements_of(triu(full({2, 2}, std::nan("")), 5)), Doubles(4, 0.0)) << "what is cut off leaves no trace";
  constexpr auto least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(elements_of(tril(from_one({2, 3}), most)), (Doubles{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(elements_of(tril(from_one({2, 3}), least)), Doubles(6, 0.0));
  EXPECT_EQ(elements_of(triu(from_one({2, 3}), most)), Doubles(6, 0.0));
  EXPECT_EQ(elements_of(triu(from_one({2, 3}), least)), (Doubles{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(error_of<ShapeError>([] { tril(ones(3)); }), "[tril] x is not a matrix: x (3,) f32 on cpu");
}

TEST(Diagonals, AreViewsOfMatricesAndMatricesOfVectors) {
  const Tensor x = from_one({2, 3});
  EXPECT_EQ(elements_of(diagonal(x)), (Doubles{1, 5}));
  EXPECT_EQ(elements_of(diagonal(x, 1)), (Doubles{2, 6}));
  EXPECT_EQ(elements_of(diagonal(x, -1)), (Doubles{4}));
  EXPECT_EQ(diagonal(x, 3).shape(), Shape{0});
  EXPECT_EQ(diagonal(x, -7).shape(), Shape{0});
  EXPECT_TRUE(diagonal(x).shares_storage_with(x));
  EXPECT_EQ(elements_of(diagonal(from_one({2, 2, 2}), 0, -2, -1)), (Doubles{1, 4, 5, 8}));
  EXPECT_EQ(elements_of(diag(doubles({1, 2}))), (Doubles{1, 0, 0, 2}));
  EXPECT_EQ(elements_of(diag(doubles({1, 2}), 1)), (Doubles{0, 1, 0, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(elements_of(diag(diag(doubles({1, 2}), -1), -1)), (Doubles{1, 2}));
  EXPECT_EQ(elements_of(diag(from_data<std::int64_t>({3}, 1))), (Doubles{3}));
  EXPECT_EQ(error_of<ShapeError>([] {
              diag(ones({1, 1, 1}));
            }),
            "[diag] needs a vector or a matrix: x (1, 1, 1) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([] { diag(ones(3), std::numeric_limits<std::int64_t>::min()); }),
            "[diag] an offset of -9223372036854775808 makes a matrix of too many elements: x (3,) f32 on cpu");
  EXPECT_EQ(error_of<IndexError>([&] { diagonal(x, 0, 1, -1); }),
            "[diagonal] dimension 1 is named twice for shape (2, 3)");
}

TEST(Unfold, ShowsWindowsWithoutACopy) {
  const Tensor x = from_one({7});
  EXPECT_EQ(elements_of(unfold(x, 0, 3, 2)), (Doubles{1, 2, 3, 3, 4, 5, 5, 6, 7}));
  EXPECT_EQ(elements_of(unfold(x, 0, 2, 2, 3)), (Doubles{1, 4, 3, 6}));
  EXPECT_EQ(unfold(from_one({2, 5, 3}), 1, 4).shape(), (Shape{2, 2, 3, 4}));
  EXPECT_TRUE(unfold(x, 0, 3).shares_storage_with(x));
  EXPECT_EQ(error_of<ShapeError>([&] { unfold(x, 0, 3, 1, 4); }),
            "[unfold] a window of 3 elements, step 1, dilation 4 does not fit into dimension 0 of shape (7,)");
  EXPECT_EQ(error_of<ValueError>([&] { unfold(x, 0, 3, 0); }),
            "[unfold] size, step and dilation must be at least 1: window of 3 elements, step 0, dilation 1 for (7,)");
}

TEST(Unfold, SumsHalfTypeGradientsBeforeRounding) {
  const Tensor x = ones(150, {.dtype = DType::bf16}).set_requires_grad();
  const Tensor windows = unfold(pad(x, 0, 299, 299), 0, 300);  // each element is in 300 windows
  EXPECT_EQ(elements_of(grad({windows}, {x}, {ones(windows.shape(), x.options())})[0]), Doubles(150, 300.0))
      << "bf16 stops counting at 256";
}

TEST(Reordering, RollsFlipsRepeatsAndTiles) {
  const Tensor x = from_one({2, 3});
  EXPECT_EQ(elements_of(roll(x, 1, 1)), (Doubles{3, 1, 2, 6, 4, 5}));
  EXPECT_EQ(elements_of(roll(x, -4, -1)), (Doubles{2, 3, 1, 5, 6, 4}));
  EXPECT_EQ(elements_of(roll(x, 1, 0)), (Doubles{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(elements_of(flip(x, 0)), (Doubles{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(elements_of(flip(x, {0, -1})), (Doubles{6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(elements_of(repeat(doubles({1, 2}), 2, 0)), (Doubles{1, 1, 2, 2}));
  EXPECT_EQ(elements_of(repeat(x, 2, 1)), (Doubles{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6}));
  EXPECT_EQ(repeat(x, 0, 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(elements_of(tile(doubles({1, 2}), {2, 2})), (Doubles{1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(elements_of(tile(doubles({1, 2}), 3)), (Doubles{1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(tile(x, {2, 0, 4}).shape(), (Shape{2, 0, 12}));
  EXPECT_EQ(elements_of(outer(doubles({1, 2}), doubles({3, 4, 5}))), (Doubles{3, 4, 5, 6, 8, 10}));
  for (const DType dtype : all_dtypes) {
    const Tensor y = to(x, dtype);
    for (const Tensor& z : {roll(y, 1, 0), flip(y, {0, 1}), repeat(y, 2, 0), tile(y, 2)}) EXPECT_EQ(z.dtype(), dtype);
  }
  EXPECT_EQ(error_of<ValueError>([&] { repeat(x, -1, 0); }), "[repeat] a count is negative: x (2, 3) f64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { tile(x, {2, -2}); }), "[tile] a count is negative: x (2, 3) f64 on cpu");
  EXPECT_EQ(error_of<IndexError>([&] { flip(x, {0, -2}); }), "[flip] dimension 0 is named twice: x (2, 3) f64 on cpu");
}

TEST(OneHot, MarksTheIndexOfEachRow) {
  const Tensor index = from_data<std::int64_t>({2, 0}, 2);
  EXPECT_EQ(elements_of(one_hot(index, 3)), (Doubles{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(describe(one_hot(index, 3, DType::i64)), "(2, 3) i64 on cpu");
  EXPECT_EQ(one_hot(zeros({0, 2}, {.dtype = DType::i64}), 4).shape(), (Shape{0, 2, 4}));
  EXPECT_EQ(error_of<IndexError>([&] { one_hot(index, 2); }), "[one_hot] index 2 at position (0,) is outside [0, 2)");
  EXPECT_EQ(error_of<DTypeError>([] { one_hot(ones(2), 3); }), "[one_hot] indices must be i64: index (2,) f32 on cpu");
}

TEST(Norm, ReducesTheGivenDimensions) {
  const Tensor x = from_data({3.0, -4.0, 0.0, 1.0, 2.0, -2.0}, {2, 3});
  EXPECT_EQ(elements_of(norm(x, 1.0, 1)), (Doubles{7, 5}));
  EXPECT_EQ(elements_of(norm(x, 2.0, -1)), (Doubles{5, 3}));
  EXPECT_EQ(elements_of(norm(x, endless, 0)), (Doubles{3, 4, 2}));
  EXPECT_EQ(norm(x, 2.0, {}, true).shape(), (Shape{1, 1}));
  EXPECT_NEAR(norm(x, 2.0).item(), norm(x).item(), 1e-15);
  EXPECT_EQ(norm(full(4, 300.0, {.dtype = DType::f16}), 2.0).item(), 600.0) << "90000 is no f16";
  EXPECT_EQ(elements_of(norm(zeros({2, 0}), 2.0, 1)), (Doubles{0, 0}));
  const Tensor zero = zeros({2, 2}, real).set_requires_grad();
  for (const double p : {1.0, 2.0}) EXPECT_EQ(elements_of(grad({sum(norm(zero, p, 1))}, {zero})[0]), Doubles(4, 0.0));
  EXPECT_EQ(elements_of(grad({sum(stddev(zero, 1))}, {zero})[0]), Doubles(4, 0.0));
  EXPECT_EQ(elements_of(stddev(doubles({1, 3, 5}), 0)), (Doubles{2}));
}

TEST(Losses, FollowTheirDefinitions) {
  Generator generator(3);
  const Tensor a = randn({4, 5}, real, generator), b = randn({4, 5}, real, generator);
  const Doubles x = elements_of(a), y = elements_of(b);
  double l1 = 0, l2 = 0, huber = 0, entropy = 0, divergence = 0;
  const Tensor t = sigmoid(b), log_q = log_softmax(a), p = softmax(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = x[i] - y[i], s = 1.0 / (1.0 + std::exp(-x[i])), target = 1.0 / (1.0 + std::exp(-y[i]));
    l1 += std::abs(d);
    l2 += d * d;
    huber += std::abs(d) <= 0.7 ? d * d / 2 : 0.7 * (std::abs(d) - 0.35);
    entropy -= target * std::log(s) + (1.0 - target) * std::log(1.0 - s);
    divergence += elements_of(p)[i] * (std::log(elements_of(p)[i]) - elements_of(log_q)[i]);
  }
  EXPECT_NEAR(l1_loss(a, b).item(), l1 / 20, 1e-14);
  EXPECT_NEAR(mse_loss(a, b, Reduction::sum).item(), l2, 1e-13);
  EXPECT_NEAR(huber_loss(a, b, 0.7).item(), huber / 20, 1e-14);
  EXPECT_NEAR(binary_cross_entropy_with_logits(a, t).item(), entropy / 20, 1e-14);
  EXPECT_NEAR(kl_div(log_q, p).item(), divergence / 4, 1e-14) << "the mean over rows";
  EXPECT_EQ(kl_div(log_q, p, Reduction::none).shape(), Shape{4});
  EXPECT_EQ(l1_loss(a, b, Reduction::none).shape(), (Shape{4, 5}));
}

TEST(Losses, AgreeForLogProbabilitiesAndLogits) {
  Generator generator(4);
  const Tensor logits = randn({2, 3, 5}, {}, generator), targets = from_data<std::int64_t>({0, 4, 2, 2, 1, 3}, {2, 3});
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const CrossEntropyOptions options{.ignore_index = 2, .label_smoothing = 0.25, .reduction = reduction};
    EXPECT_TRUE(
        allclose(nll_loss(log_softmax(logits), targets, options), cross_entropy(logits, targets, options), 1e-6, 1e-6));
  }
  EXPECT_EQ(error_of<IndexError>([&] { nll_loss(logits, targets + 2.0); }),
            "[nll_loss] target 6 at position (0, 1) is outside [0, 5)");
  EXPECT_EQ(error_of<ShapeError>([&] { nll_loss(logits, targets[0]); }),
            "[nll_loss] needs log_probabilities (..., V) and targets (...): log_probabilities (2, 3, 5) f32 on cpu, "
            "targets (3,) i64 on cpu");
}

TEST(Losses, AreExactInTheTails) {
  const Tensor x = doubles({-800, -40, 40, 800}).set_requires_grad(), t = doubles({0, 0, 1, 1});
  const Tensor losses = binary_cross_entropy_with_logits(x, t, Reduction::none);
  EXPECT_EQ(losses.to_vector<double>(), (Doubles{0, std::exp(-40.0), std::exp(-40.0), 0}));
  EXPECT_EQ(elements_of(binary_cross_entropy_with_logits(x, 1.0 - t, Reduction::none)), (Doubles{800, 40, 40, 800}));
  const Doubles slopes = elements_of(grad({sum(losses)}, {x})[0]);
  EXPECT_NEAR(slopes[1], std::exp(-40.0), 1e-30);
  EXPECT_NEAR(slopes[2], -std::exp(-40.0), 1e-30);
  const Tensor none = doubles({0, 1}).set_requires_grad(), log_q = doubles({-endless, -0.5}).set_requires_grad();
  const Tensor loss = kl_div(log_q, none);
  EXPECT_EQ(loss.item(), 0.5);
  for (const Tensor& gradient : grad({loss}, {none, log_q}))
    for (const double g : elements_of(gradient)) EXPECT_TRUE(std::isfinite(g));
}

TEST(Construct, WorksOnEachOfEightDimensions) {
  const Tensor x = reshape(arange(0.0, 48.0, 1.0, real), {2, 1, 3, 1, 2, 1, 4, 1}).set_requires_grad();
  for (int d = 0; d < 8; ++d) {
    std::vector<std::int64_t> each;
    for (std::int64_t i = 0; i < x.size(d); ++i) each.insert(each.end(), {i, i, i});
    Dims counts = Dims::filled(8, 1);
    counts[d] = 3;
    const Tensor repeated = index_select(x, d, from_data(each, {3 * x.size(d)}));
    EXPECT_EQ(elements_of(repeat(x, 3, d)), elements_of(repeated)) << d;
    EXPECT_EQ(repeat(x, 3, d).shape(), repeated.shape());
    EXPECT_EQ(elements_of(tile(x, counts)), elements_of(cat({x, x, x}, d))) << d;
    EXPECT_EQ(repeat(x, 0, d).numel(), 0);
    EXPECT_EQ(elements_of(grad({sum(repeat(x, 3, d))}, {x})[0]), Doubles(48, 3.0));
    EXPECT_TRUE(allclose(logcumsumexp(x, d), log(cumsum(exp(x - 40.0), d)) + 40.0, 1e-14, 1e-12)) << d;
  }
  EXPECT_EQ((x[{new_axis, 1, ellipsis, new_axis, 0}]).shape(), (Shape{1, 1, 3, 1, 2, 1, 4, 1}));
  EXPECT_EQ(elements_of(x[{new_axis, 1, ellipsis, new_axis, 0}]), elements_of(x[1]));
  EXPECT_EQ((x[{slice(0, 1), new_axis, 0, new_axis, 2}]).shape(), (Shape{1, 1, 1, 1, 2, 1, 4, 1}));
}

TEST(Construct, SplitsAGradientAmong70000TiesInHalfTypes) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const Tensor x = zeros(70000, {.dtype = dtype}).set_requires_grad();
    for (const double g : elements_of(grad({max(x)}, {x})[0])) ASSERT_NEAR(g, 1.0 / 70000, 6e-8) << to_string(dtype);
    for (const double g : elements_of(grad({min(x)}, {x})[0])) ASSERT_NEAR(g, 1.0 / 70000, 6e-8) << to_string(dtype);
  }
}

TEST(Losses, ReturnF32EntropiesForHalfTypes) {
  const Tensor a = full({2, 3}, -0.5, {.dtype = DType::bf16}), b = full({2, 3}, 0.5, {.dtype = DType::bf16});
  EXPECT_EQ(binary_cross_entropy_with_logits(a, b).dtype(), DType::f32);
  EXPECT_EQ(kl_div(a, b).dtype(), DType::f32);
  EXPECT_EQ(nll_loss(a, zeros({2}, {.dtype = DType::i64})).dtype(), DType::f32);
  EXPECT_EQ(huber_loss(a, b).dtype(), DType::bf16);
}

TEST(Losses, NameTheirOperandsInErrors) {
  const Tensor a = ones({2, 3}), b = ones(3);
  const std::string operands = "shapes differ: a (2, 3) f32 on cpu, b (3,) f32 on cpu";
  EXPECT_EQ(error_of<ShapeError>([&] { l1_loss(a, b); }), "[l1_loss] " + operands);
  EXPECT_EQ(error_of<ShapeError>([&] { mse_loss(a, b); }), "[mse_loss] " + operands);
  EXPECT_EQ(error_of<ShapeError>([&] { huber_loss(a, b); }), "[huber_loss] " + operands);
  EXPECT_EQ(error_of<ValueError>([&] { huber_loss(a, a, 0.0); }),
            "[huber_loss] delta 0 is not positive: a (2, 3) f32 on cpu, b (2, 3) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { kl_div(a, b); }),
            "[kl_div] shapes differ: log_q (2, 3) f32 on cpu, p (3,) f32 on cpu");
  EXPECT_EQ(
      error_of<DTypeError>([&] { binary_cross_entropy_with_logits(a, to(a, DType::i64)); }),
      "[binary_cross_entropy_with_logits] operands differ in dtype: logits (2, 3) f32 on cpu, targets (2, 3) i64 on "
      "cpu");
}

}  // namespace
}  // namespace poolgrad
