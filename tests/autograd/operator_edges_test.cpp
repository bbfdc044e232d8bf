// Cases that finite differences do not cover: kinks, ties, infinities, integers, memory.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/parallel.h"
#include "tensor/compare.h"
#include "tensor/grad_mode.h"
#include "tests/autograd/operator_table.h"

namespace poolgrad {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Doubles = std::vector<double>;

Tensor f64(std::initializer_list<double> values) { return testing::Numbers::values(values); }

template <class Function>
Doubles slopes(const Function& function, std::initializer_list<double> at) {
  const Tensor x = f64(at).set_requires_grad();
  return grad({sum(function(x))}, {x})[0].template to_vector<double>();
}

// At position p, pair d of a vector of ones becomes m (cos a - sin a, sin a + cos a), a = p f_d.
TEST(Rope, FitsLongerContexts) {
  const std::int64_t size = 32, half = size / 2, positions = 40;
  const double base = 500, factor = 8;
  const Tensor x = ones({1, positions, 1, size}, {.dtype = DType::f64});
  const auto expect = [&](const RopeOptions& options, const std::function<double(double, std::int64_t)>& frequency,
                          double magnitude) {
    const Doubles found = rope(x, 0, options).to_vector<double>();
    for (std::int64_t p = 0; p < positions; ++p)
      for (std::int64_t d = 0; d < half; ++d) {
        const double plain = std::pow(base, -2.0 * static_cast<double>(d) / static_cast<double>(size));
        const double angle = static_cast<double>(p) * frequency(plain, d);
        const double* at = found.data() + p * size + d;
        EXPECT_NEAR(at[0], magnitude * (std::cos(angle) - std::sin(angle)), 1e-12) << p << ", " << d;
        EXPECT_NEAR(at[half], magnitude * (std::sin(angle) + std::cos(angle)), 1e-12) << p << ", " << d;
      }
  };
  const auto plain = [](double f, std::int64_t) { return f; };
  expect(base, plain, 1);
  expect({base, RopeScaling::none, factor}, plain, 1);
  expect(
      {base, RopeScaling::linear, factor}, [&](double f, std::int64_t) { return f / factor; }, 1);
  // The fastest pair keeps its frequency; the slowest is divided by the factor.
  expect(
      {base, RopeScaling::ntk, factor},
      [&](double f, std::int64_t d) {
        return f * std::pow(factor, -static_cast<double>(d) / static_cast<double>(half - 1));
      },
      1);
  expect(
      {base, RopeScaling::yarn, factor, 64},
      [&](double f, std::int64_t d) {  // pair 5.98 turns once in 64 positions, and no pair 32 times
        const double kept = 1 - std::min(static_cast<double>(d) / 6, 1.0);
        return (1 - kept) * f / factor + kept * f;
      },
      0.1 * std::log(factor) + 1);
  EXPECT_EQ(rope(slice(x, 3, 0, 2), 3, {base, RopeScaling::ntk, factor}).to_vector<double>(),
            rope(slice(x, 3, 0, 2), 3).to_vector<double>())
      << "a single pair turns by 1";
}

TEST(Rope, RotatesPartOfASequenceByItsPositionMap) {
  Generator generator(4);
  const Tensor whole = randn({2, 12, 3, 4}, {.dtype = DType::f64}, generator), want = rope(whole);
  for (const kernels::PositionMap& map : {kernels::PositionMap{4, 4, 2, 2, 3}, kernels::PositionMap{4, 1, 3, 8, 1}}) {
    const auto of_map = [&](const Tensor& x) {
      std::vector<Tensor> steps;
      for (std::int64_t i = 0; i < 4; ++i) steps.push_back(slice(x, 1, map.position(i), map.position(i) + 1));
      return cat(steps, 1);
    };
    const Tensor part = of_map(whole).set_requires_grad(), got = rope(part, map);
    EXPECT_TRUE(bit_equal(got.detach(), of_map(want))) << map.stride;
    EXPECT_LT(relative_error(grad({sum(square(got))}, {part})[0], part * 2.0), 1e-14) << "a rotation";
  }
  EXPECT_THROW(rope(whole, kernels::PositionMap::contiguous(5)), ShapeError);
}

TEST(Kinks, HaveTheDocumentedGradients) {
  EXPECT_EQ(slopes(abs, {0.0, -0.0}), (Doubles{0, 0}));
  EXPECT_EQ(slopes(relu, {0.0}), (Doubles{0}));
  EXPECT_EQ(slopes([](const Tensor& x) { return clamp(x, -1.0, 1.0); }, {-1, 1, 1.5}), (Doubles{1, 1, 0}));
  EXPECT_EQ(slopes([](const Tensor& x) { return max(x); }, {2, 5, 5, 5, 5}), (Doubles{0, 0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(slopes([](const Tensor& x) { return maximum(x, f64({1, 1, 1})); }, {0, 1, 2}), (Doubles{0, 0.5, 1}));
  EXPECT_EQ(slopes([](const Tensor& x) { return minimum(x, f64({1, 1, 1})); }, {0, 1, 2}), (Doubles{1, 0.5, 0}));
  EXPECT_EQ(slopes([](const Tensor& x) { return norm(x); }, {0, 0, 0}), (Doubles{0, 0, 0}));
  EXPECT_EQ(slopes([](const Tensor& x) { return pow(x, 0.0); }, {0, 2}), (Doubles{0, 0}));
  EXPECT_EQ(slopes([](const Tensor& x) { return pow(x, f64({0, 1, 2})); }, {0, 0, 0}), (Doubles{0, 1, 0}));
  EXPECT_EQ(slopes([](const Tensor& b) { return pow(f64({0, 0, 0}), b); }, {2, 0, -1}), (Doubles{0, 0, 0}));
}

TEST(FullyMaskedRows, GiveNoNan) {
  const Tensor x = full({2, 3}, -infinity, {.dtype = DType::f64}).set_requires_grad();
  for (const bool create_graph : {false, true}) {
    const Tensor y = softmax(x);
    EXPECT_EQ(y.to_vector<double>(), Doubles(6, 0.0));
    EXPECT_EQ(grad({sum(y)}, {x}, {}, {.create_graph = create_graph})[0].to_vector<double>(), Doubles(6, 0.0));
    const Tensor z = log_softmax(x);
    EXPECT_EQ(z.to_vector<double>(), Doubles(6, -infinity));
    for (const double g : grad({sum(z)}, {x}, {}, {.create_graph = create_graph})[0].to_vector<double>())
      EXPECT_FALSE(std::isnan(g));
    const Tensor lse = logsumexp(x, -1);
    EXPECT_EQ(lse.to_vector<double>(), Doubles(2, -infinity));
    EXPECT_EQ(grad({sum(lse)}, {x}, {}, {.create_graph = create_graph})[0].to_vector<double>(), Doubles(6, 0.0));
  }
}

TEST(EmptyReductions, GiveTheNeutralElement) {
  const Tensor x = zeros({0, 2});
  EXPECT_EQ(sum(x).item(), 0.0);
  EXPECT_EQ(prod(x, {0}).to_vector<double>(), (Doubles{1, 1}));
  EXPECT_TRUE(std::isnan(mean(x).item()));
  EXPECT_EQ(any(x).item(), 0.0);
  EXPECT_EQ(all(x).item(), 1.0);
}

TEST(HalfTypes, HaveGradientsWhereSquaresAndProductsOverflow) {
  const auto check = [](const char* name, const auto& function, const Tensor& at) {
    const auto gradients = [&](DType dtype, bool create_graph) {
      const Tensor x = to(at, dtype).detach().set_requires_grad();
      return grad({function(x)}, {x}, {to(arange(1, 5), dtype)}, {.create_graph = create_graph})[0].detach();
    };
    const Tensor exact = gradients(DType::f64, false);
    for (const bool create_graph : {false, true})
      EXPECT_LT(relative_error(gradients(DType::f16, create_graph), exact), 3e-3) << name << create_graph;
  };
  const Tensor large = f64({300, -500, 10, 2}), alike = f64({1, 1, 1, 1.0009765625});
  check(
      "gelu", [](const Tensor& x) { return gelu(x); }, large);
  check(
      "gelu tanh", [](const Tensor& x) { return gelu(x, GeluKind::tanh); }, large);
  check(
      "silu", [](const Tensor& x) { return silu(x); }, large);
  check(
      "rms_norm", [](const Tensor& x) { return rms_norm(x); }, large);
  check(
      "layer_norm", [](const Tensor& x) { return layer_norm(x); }, large);
  check(
      "layer_norm", [](const Tensor& x) { return layer_norm(x); }, alike);
  check(
      "prod", [](const Tensor& x) { return expand(prod(x), {4}); }, f64({400, 0.0078125, 200, 0.03125}));
  constexpr double tiny = 0x1p-10;
  const Tensor small = f64({0x1p-10, 0x1p-12, 0.5, 2});
  check(
      "reciprocal", [](const Tensor& x) { return reciprocal(x) * tiny; }, small);
  check(
      "rsqrt", [](const Tensor& x) { return rsqrt(x) * tiny; }, small);
  check(
      "power", [](const Tensor& x) { return pow(x, -0.5) * tiny; }, small);
  check(
      "pow", [](const Tensor& x) { return pow(x, full({4}, -1.0, x.options())) * tiny; }, small);
  check(
      "norm", [](const Tensor& x) { return expand(norm(x), {4}); }, f64({0x1p-15, 0x1p-14, 0x1p-15, 0x1p-16}));
  check(
      "div", [](const Tensor& x) { return full({4}, 0x1p-19, x.options()) / x; }, f64({0x1p-15, 0x1p-15, 0.5, 2}));
}

TEST(Variance, SurvivesSquaresBeyondF16) {
  for (const double spread : {3.0, 300.0}) {  // one variance fits f16, the other does not
    const Tensor signs = repeat(f64({1, -1}), 40'000, 0), x = to(signs * spread, DType::f16).set_requires_grad();
    const double deviation = stddev(x, {}, false, 0.0).item();
    EXPECT_EQ(deviation, spread);
    EXPECT_EQ(var(x, {}, false, 0.0).item(), spread < 256 ? spread * spread : infinity);
    for (const double slope : grad({stddev(slice(x, 0, 39'998, 40'002), {}, false, 0.0)}, {x})[0].to_vector<double>())
      ASSERT_TRUE(std::abs(slope) == 0.25 || slope == 0) << slope;
  }
}

TEST(Variance, IsNanWithoutDegreesOfFreedom) {
  for (const double correction : {2.0, 3.0}) {
    EXPECT_EQ(var(f64({1, 2}), {}, false, correction).item(), infinity);
    EXPECT_TRUE(std::isnan(var(f64({1, 1}), {}, false, correction).item()));
  }
}

TEST(LogSumExp, IsInfinityForAnInfiniteElement) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor rows = from_data({0.0, infinity, 1.0, infinity, -infinity, infinity, infinity, nan, 0.0}, {3, 3});
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t more : {0, 40}) {
      const Tensor x = to(pad(rows, 1, 0, more), dtype);
      const Doubles sums = logsumexp(x, -1).to_vector<double>();
      EXPECT_EQ(sums[0], infinity) << to_string(dtype) << more;
      EXPECT_EQ(sums[1], infinity) << to_string(dtype) << more;
      EXPECT_TRUE(std::isnan(sums[2])) << to_string(dtype) << more;
      const Tensor running = slice(logcumsumexp(select(x, 0, 0), 0), 0, 0, 3);
      EXPECT_EQ(running.to_vector<double>(), (Doubles{0, infinity, infinity}));
    }
}

TEST(RunningProduct, IsExactForIntegersAndZeros) {
  using Integers = std::vector<std::int64_t>;
  const Tensor bytes = from_data<std::uint8_t>({20, 20, 20, 0, 5}, {5});
  EXPECT_EQ(cumprod(bytes, 0).dtype(), DType::i64);
  EXPECT_EQ(cumprod(bytes, 0).to_vector<std::int64_t>(), (Integers{20, 400, 8000, 0, 0}));
  const Tensor x = from_data({2.0, 0.0, 3.0}, {3}).set_requires_grad();
  EXPECT_EQ(grad({sum(cumprod(x, 0))}, {x})[0].to_vector<double>(), (Doubles{1, 8, 0}));
  const Tensor one = from_data({5.0f}, {1}), product = cumprod(one, 0);
  EXPECT_FALSE(product.shares_storage_with(one));
}

TEST(RunningLogSumExp, IsStableAndAcceptsMinusInfinity) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = from_data({-infinity, -1000.0, 0.0, 1000.0, -1000.0}, {5}).set_requires_grad();
  const Tensor y = logcumsumexp(x, 0);
  EXPECT_EQ(y.to_vector<double>(), (Doubles{-infinity, -1000, 0, 1000, 1000}));
  EXPECT_EQ(grad({sum(y)}, {x})[0].to_vector<double>(), (Doubles{0, 1, 1, 2, 0}));
  for (const std::int64_t n : {1, 2, 3}) {
    const Tensor nothing = full({n}, -infinity, {DType::f64}).set_requires_grad();
    EXPECT_EQ(grad({logcumsumexp(nothing, 0)}, {nothing}, {ones_like(nothing)})[0].to_vector<double>(),
              Doubles(static_cast<std::size_t>(n), 0.0));
  }
  // 0, 1, 2, ... in f16: the sum of exp is e^n / (1 - 1/e), and e^20 exceeds f16.
  const Tensor ramp = to(arange(0, 20), DType::f16);
  EXPECT_NEAR(to(logcumsumexp(ramp, 0), DType::f64).to_vector<double>()[19], 19.458675, 0.01);
}

TEST(Sort, GivesValuesAndIndicesAlongAnyDimensionOfAnyDtype) {
  using Integers = std::vector<std::int64_t>;
  const Tensor x = from_data<std::int32_t>({3, 1, 2, 1, 5, 0}, {2, 3});
  const auto [rows, of_rows] = sort(x);
  EXPECT_EQ(rows.dtype(), DType::i32);
  EXPECT_EQ(rows.to_vector<std::int64_t>(), (Integers{1, 2, 3, 0, 1, 5}));
  EXPECT_EQ(of_rows.to_vector<std::int64_t>(), (Integers{1, 2, 0, 2, 0, 1}));
  const auto [columns, of_columns] = sort(x, 0, /*descending=*/true);
  EXPECT_EQ(columns.to_vector<std::int64_t>(), (Integers{3, 5, 2, 1, 1, 0}));
  EXPECT_EQ(of_columns.to_vector<std::int64_t>(), (Integers{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(argsort(from_data({true, false, true, false}, {4})).to_vector<std::int64_t>(), (Integers{1, 3, 0, 2}));
  EXPECT_TRUE(bit_equal(argsort(transpose(x, 0, 1), 0), transpose(of_rows, 0, 1)));
  EXPECT_EQ(sort(zeros({2, 0, 3}), 1).values.shape(), (Shape{2, 0, 3}));
}

TEST(TopK, SelectsTheLargestAndGivesThemTheGradient) {
  using Integers = std::vector<std::int64_t>;
  const Tensor x = from_data<double>({1.0, NAN, 4.0, 4.0, -2.0}, {5}).set_requires_grad();
  const auto [largest, places] = topk(x, 3);
  EXPECT_EQ(largest.to_vector<double>(), (Doubles{4, 4, 1}));
  EXPECT_EQ(places.to_vector<std::int64_t>(), (Integers{2, 3, 0}));
  EXPECT_EQ(grad({sum(largest)}, {x})[0].to_vector<double>(), (Doubles{1, 0, 1, 1, 0}));
  EXPECT_EQ(topk(x, 2, 0, /*largest=*/false).values.to_vector<double>(), (Doubles{-2, 1}));
  EXPECT_EQ(topk(x, 0).values.shape(), (Shape{0}));
  EXPECT_TRUE(std::isnan(topk(x, 5).values.to_vector<double>()[4]));
}

TEST(Norm, SurvivesSquaresBeyondTheDtype) {
  for (const double value : {1e20, 1e-30}) {
    const Tensor x = full({4}, value).set_requires_grad();
    const Tensor length = norm(x);
    EXPECT_FLOAT_EQ(static_cast<float>(length.item()), static_cast<float>(2 * value));
    EXPECT_EQ(grad({length}, {x})[0].to_vector<double>(), (Doubles{0.5, 0.5, 0.5, 0.5}));
  }
}

TEST(Norm, AlongADimensionSurvivesSquaresBeyondTheDtype) {
  for (const double value : {1e20, 1e-30}) {
    const Tensor x = full({2, 4}, value).set_requires_grad();
    const Tensor lengths = norm(x, 2.0, 1);
    EXPECT_EQ(lengths.shape(), (Shape{2}));
    for (const double length : lengths.to_vector<double>()) EXPECT_FLOAT_EQ(length, 2 * value);
    EXPECT_EQ(grad({sum(lengths)}, {x})[0].to_vector<double>(), Doubles(8, 0.5));
  }
}

/// Rounds the true quotient once; x * (1 / b) does not.
TEST(Division, ByANumberRoundsOnce) {
  Generator generator(12);
  for (const double divisor : {3.0, 10.0, -7.0, 49.0}) {
    const Tensor x = randn({1000}, {.dtype = DType::f64}, generator).set_requires_grad();
    const std::vector<double> values = x.to_vector<double>(), found = (x / divisor).to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(found[i], values[i] / divisor);
    const Tensor narrow = to(x.detach(), DType::f32).set_requires_grad();
    const std::vector<float> floats = narrow.to_vector<float>(), quotients = (narrow / divisor).to_vector<float>();
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(quotients[i], floats[i] / static_cast<float>(divisor));
    for (const bool create_graph : {false, true}) {
      const Tensor slope = grad({sum(narrow / divisor)}, {narrow}, {}, {.create_graph = create_graph})[0];
      EXPECT_EQ(slope.to_vector<float>()[0], 1.0f / static_cast<float>(divisor));
    }
  }
  EXPECT_EQ((full({2}, 6.0, {.dtype = DType::bf16}) / 0.1).to_vector<double>(), (Doubles{60, 60}));
}

TEST(Embedding, GivesNoGradientToThePaddingRow) {
  const Tensor table = ones({3, 2}, {.dtype = DType::f64}).set_requires_grad();
  const Tensor index = from_data<std::int64_t>({1, 2, 1, 0}, {4});
  for (const bool create_graph : {false, true}) {
    const Tensor gradient = grad({sum(embedding(table, index, 1))}, {table}, {}, {.create_graph = create_graph})[0];
    EXPECT_EQ(gradient.to_vector<double>(), (Doubles{1, 1, 0, 0, 1, 1}));
  }
}

TEST(CrossEntropy, IsZeroWhenEveryTargetIsIgnored) {
  const Tensor logits = ones({2, 3}).set_requires_grad(), weight = ones({3, 3}).set_requires_grad();
  const Tensor targets = full({2}, -100, {.dtype = DType::i64});
  EXPECT_EQ(cross_entropy(logits, targets).item(), 0.0);
  EXPECT_EQ(grad({cross_entropy(logits, targets)}, {logits})[0].to_vector<double>(), Doubles(6, 0.0));
  EXPECT_EQ(linear_cross_entropy(logits, weight, targets).item(), 0.0);
}

TEST(LinearCrossEntropy, IsCrossEntropyOfALinearLayerOverManyChunks) {
  Generator generator(3);
  const Tensor x = randn({2500, 8}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor weight = randn({11, 8}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor targets = randint(0, 11, {2500}, {.dtype = DType::i64}, generator);
  const CrossEntropyOptions options{.ignore_index = 4, .label_smoothing = 0.1};

  const Tensor fused = linear_cross_entropy(x, weight, targets, options);
  const Tensor plain = cross_entropy(linear(x, weight), targets, options);
  EXPECT_TRUE(allclose(fused, plain, 1e-12));
  const auto found = grad({fused}, {x, weight}, {scalar(0.5, {.dtype = DType::f64})});
  const auto expected = grad({plain}, {x, weight}, {scalar(0.5, {.dtype = DType::f64})});
  EXPECT_TRUE(allclose(found[0], expected[0], 1e-10, 1e-14));
  EXPECT_TRUE(allclose(found[1], expected[1], 1e-10, 1e-14));
}

TEST(Losses, DetectWritesToTheirTargets) {
  const Tensor x = ones({4, 3}).set_requires_grad(), weight = ones({5, 3}).set_requires_grad();
  for (const bool create_graph : {false, true})
    for (const bool fused : {false, true})
      for (const bool again : {false, true}) {
        Tensor targets = from_data<std::int64_t>({0, 1, 2, 3}, {4});
        const Tensor loss =
            fused ? linear_cross_entropy(x, weight, targets) : cross_entropy(linear(x, weight), targets);
        if (again) grad({loss}, {x, weight}, {}, {.retain_graph = true});
        targets.fill(1e9);
        EXPECT_THROW(grad({loss}, {x, weight}, {}, {.create_graph = create_graph}), Error) << fused << again;
      }
}

TEST(Losses, NllAndMseSurviveWritesToTheirTargets) {
  const Tensor scores = arange(0.0, 12.0).set_requires_grad();
  const auto gradient = [&](bool written, const auto& loss_of, const Tensor& like) {
    Tensor targets = like.copy();
    const Tensor loss = loss_of(reshape(scores, {4, 3}), targets);
    if (written) targets.fill(100.0);
    return grad({loss}, {scores})[0];
  };
  const auto nll = [](const Tensor& x, const Tensor& t) { return nll_loss(log_softmax(x, -1), t); };
  const auto mse = [](const Tensor& x, const Tensor& t) { return mse_loss(x, t); };
  const Tensor classes = from_data<std::int64_t>({0, 1, 2, 0}, {4}), numbers = ones({4, 3});
  EXPECT_TRUE(bit_equal(gradient(true, nll, classes), gradient(false, nll, classes)));
  EXPECT_TRUE(bit_equal(gradient(true, mse, numbers), gradient(false, mse, numbers)));
}

TEST(Losses, AcceptTargetsOfAnyLayout) {
  Generator generator(8);
  const Tensor x = randn({3, 2, 4}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor weight = randn({5, 4}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor dense_targets = from_data<std::int64_t>({0, 4, 1, 3, 2, 2}, {3, 2});
  const Tensor targets = transpose(transpose(dense_targets, 0, 1).copy(), 0, 1);
  ASSERT_FALSE(targets.is_contiguous());
  for (const bool create_graph : {false, true}) {
    const auto gradients = [&](const Tensor& t) {
      return grad({linear_cross_entropy(x, weight, t) + cross_entropy(linear(x, weight), t)}, {x, weight}, {},
                  {.create_graph = create_graph});
    };
    const auto expected = gradients(dense_targets), found = gradients(targets);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(found[i], expected[i]));
  }
}

TEST(LinearCrossEntropy, TagsItsForwardPassGradients) {
  const auto bytes = [](Category category) {
    return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(category)].current;
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = zeros({64, 16}, {.dtype = dtype}).set_requires_grad();
    const Tensor weight = zeros({32, 16}, {.dtype = dtype}).set_requires_grad();
    const Tensor targets = zeros({64}, {.dtype = DType::i64});
    const auto gradient = bytes(Category::gradient), workspace = bytes(Category::workspace);
    const Tensor loss = linear_cross_entropy(x, weight, targets);
    EXPECT_EQ(bytes(Category::gradient) - gradient, (64 + 32) * 16 * size_of(dtype));
    EXPECT_EQ(bytes(Category::workspace), workspace);
  }
}

/// Peak memory of loss.backward(), in tensors of `count` f32.
double peak_of_backward(const Tensor& loss, std::int64_t count) {
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const std::uint64_t before = pool.statistics().requested_bytes.current;
  loss.backward();
  return static_cast<double>(pool.statistics().requested_bytes.peak - before) / static_cast<double>(4 * count);
}

TEST(GradientBuffers, AreReusedWhenUnshared) {
  const std::int64_t count = 1 << 16;
  const Tensor x = full({1, 64, 16, 64}, 0.5, {}).set_requires_grad();
  EXPECT_LT(peak_of_backward(sum(exp(rope(gelu(x)) * 2.0)), count), 1.1) << "one, of which the leaf's is made";
}

TEST(GradientBuffers, AreNotReusedWhileAHookACallerOrAPathHoldsThem) {
  Generator generator(7);
  const Tensor start = randn({1, 3, 2, 4}, {.dtype = DType::f64}, generator);
  const auto run = [&](bool hold) {
    const Tensor x = start.detach().set_requires_grad();
    const Tensor middle = gelu(x), last = rope(middle);
    Tensor held;
    if (hold) register_hook(last, [&](const Tensor& gradient) { return held = gradient; });
    const Tensor seed = exp(start.detach());
    const auto all = grad({tanh(last)}, hold ? std::vector{x, middle, last} : std::vector{x}, {seed});
    EXPECT_TRUE(bit_equal(seed, exp(start.detach()))) << "the caller's";
    if (hold) {
      EXPECT_TRUE(allclose(held, seed * (1.0 - square(tanh(last.detach()))), 1e-13)) << "the hook's";
      EXPECT_TRUE(bit_equal(all[2], held));
      EXPECT_TRUE(allclose(all[1], grad({tanh(rope(middle))}, {middle}, {seed})[0], 1e-14));
    }
    return all[0];
  };
  EXPECT_TRUE(bit_equal(run(true), run(false)));
}

TEST(LinearCrossEntropy, HoldsOneChunkOfLogits) {
  const std::int64_t rows = 4096, classes = 4096, width = 8;
  const Tensor x = zeros({rows, width}).set_requires_grad(), weight = zeros({classes, width}).set_requires_grad();
  const Tensor targets = zeros({rows}, {.dtype = DType::i64});
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  const std::uint64_t before = pool.statistics().requested_bytes.current;
  linear_cross_entropy(x, weight, targets).backward();
  const std::uint64_t peak = pool.statistics().requested_bytes.peak - before;
  EXPECT_LT(peak, rows * classes * 4 / 2);
}

TEST(LinearCrossEntropy, ReturnsStoredGradientsOnceAndThenRecomputes) {
  Generator generator(4);
  const Tensor x = randn({5, 3}, {}, generator).set_requires_grad();
  const Tensor weight = randn({4, 3}, {}, generator).set_requires_grad();
  const Tensor loss = linear_cross_entropy(x, weight, from_data<std::int64_t>({0, 1, 2, 3, 0}, {5}));
  const auto first = grad({loss}, {x, weight}, {}, {.retain_graph = true});
  const auto doubled = grad({loss}, {x, weight}, {scalar(2.0)}, {.retain_graph = true});
  const auto again = grad({loss}, {x, weight});
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(bit_equal(again[i], first[i]));
    EXPECT_TRUE(bit_equal(doubled[i], first[i] * 2.0));
  }
}

TEST(LinearCrossEntropy, GivesStoredGradientsToOneOfTwoThreads) {
  Generator generator(5);
  const Tensor x = randn({8, 3}, {}, generator).set_requires_grad();
  const Tensor weight = randn({4, 3}, {}, generator).set_requires_grad();
  const Tensor targets = randint(0, 4, {8}, {.dtype = DType::i64}, generator);
  const auto gradients_of = [&](const Tensor& loss) {
    return grad({loss}, {x, weight}, {scalar(3.0f)}, {.retain_graph = true});
  };
  const auto expected = gradients_of(linear_cross_entropy(x, weight, targets));
  constexpr int rounds = 1000;
  std::vector<Tensor> losses;
  for (int round = 0; round < rounds; ++round) losses.push_back(linear_cross_entropy(x, weight, targets));
  std::array<std::vector<std::vector<Tensor>>, 2> found;
  std::atomic<int> ready = 0;
  const auto run = [&](std::size_t thread) {
    for (int round = 0; round < rounds; ++round) {
      for (++ready; ready < 2 * (round + 1);) continue;  // spins: a yield would delay one thread
      found[thread].push_back(gradients_of(losses[static_cast<std::size_t>(round)]));
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const auto& of_thread : found)
    for (const std::vector<Tensor>& each : of_thread)
      for (std::size_t i = 0; i < 2; ++i) ASSERT_TRUE(bit_equal(each[i], expected[i]));
}

/// Bytes that `call` requests from the pool, without workspaces.
template <class Call>
std::uint64_t bytes_asked_for(const Call& call) {
  const auto asked = [] {
    const Statistics now = allocator_for(cpu).statistics();
    const auto workspace = static_cast<std::size_t>(Category::workspace);
    return now.requested_bytes.allocated - now.category_bytes[workspace].allocated;
  };
  const std::uint64_t before = asked();
  call();
  return asked() - before;
}

TEST(Linear, CopiesNothingInForwardOrBackward) {
  const std::int64_t batch = 2, length = 16, in = 8, out = 12;
  const Tensor x = ones({batch, length, in}).set_requires_grad(), weight = ones({out, in}).set_requires_grad();
  const Tensor bias = ones({out}).set_requires_grad(), seed = ones({batch, length, out});
  Tensor y;
  EXPECT_EQ(bytes_asked_for([&] { y = linear(x, weight, bias); }), 4u * batch * length * out);
  std::vector<Tensor> gradients;
  EXPECT_EQ(bytes_asked_for([&] {
              gradients = grad({y}, {x, weight, bias}, {seed});
            }),
            4u * (batch * length * in + out * in + out));
}

TEST(Matmul, ReadsTransposedSlicedAndBroadcastOperandsInPlace) {
  const Tensor packed = ones({4, 16, 3, 8}), table = ones({8, 16});
  const Tensor q = transpose(select(packed, 2, 0), 1, 2), k = select(packed, 2, 1);
  EXPECT_EQ(bytes_asked_for([&] { matmul(k, q); }), 4u * 4 * 16 * 16);
  EXPECT_EQ(bytes_asked_for([&] { matmul(k, expand(table, {4, 8, 16})); }), 4u * 4 * 16 * 16);
}

TEST(Split, CollectsTheGradientsOfAllPartsInOneTensor) {
  const Tensor packed = ones({4, 30}).set_requires_grad();
  const std::vector<Tensor> parts = split(packed, 3, 1);
  const Tensor loss = sum(parts[0] * parts[2]);
  const Tensor gradient = grad({loss}, {packed}, {}, {.retain_graph = true})[0];
  EXPECT_EQ(sum(slice(gradient, 1, 10, 20)).item(), 0.0);
  EXPECT_EQ(sum(gradient).item(), 80.0);
  const std::uint64_t products = 4u * 4 * 10 * 2, assembled = 4u * 4 * 30;
  EXPECT_EQ(bytes_asked_for([&] { grad({loss}, {packed}); }), products + assembled + 4u);  // and the seed, 1
}

TEST(Operators, GiveTheSameBitsForOneThreadAndTwo) {
  Generator generator(6);
  const Tensor x = randn({2, 300, 64}, {}, generator).set_requires_grad();
  const Tensor weight = randn({192, 64}, {}, generator).set_requires_grad();
  const Tensor bias = randn({192}, {}, generator).set_requires_grad();
  const Tensor gain = randn({64}, {}, generator).set_requires_grad();
  const Tensor table = randn({192, 64}, {}, generator).set_requires_grad();
  const Tensor targets = randint(0, 192, {2, 300}, {.dtype = DType::i64}, generator);
  const auto step = [&] {
    const Tensor hidden = linear(layer_norm(x + embedding(table, targets), gain), weight, bias);
    const std::vector<Tensor> parts = split(hidden, 3, -1);
    const Tensor mixed = silu_mul(parts[0], gelu(parts[1])) + softmax(parts[2]);
    const Tensor loss = linear_cross_entropy(rms_norm(mixed, gain), weight, targets) + norm(mixed) + mean(hidden);
    std::vector<Tensor> results = grad({loss}, {x, weight, bias, gain, table});
    results.push_back(loss);
    return results;
  };
  const int threads = kernels::num_threads();
  kernels::set_num_threads(1);
  const std::vector<Tensor> one = step();
  kernels::set_num_threads(2);
  const std::vector<Tensor> two = step();
  kernels::set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(bit_equal(one[i], two[i])) << i;
}

TEST(Operators, LeakNoMemory) {
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const Tensor x = ones({6, 5}).set_requires_grad(), weight = ones({4, 5}).set_requires_grad();
  const std::uint64_t before = live();
  {
    const Tensor loss = linear_cross_entropy(softmax(x * 2.0), weight, zeros({6}, {.dtype = DType::i64}));
    grad({loss}, {x, weight}, {}, {.create_graph = true});
  }
  EXPECT_EQ(live(), before);
}

TEST(Operators, SaveNothingWithoutRequiresGrad) {
  const Tensor x = ones({64, 64}).set_requires_grad();
  const NoGradGuard guard;
  const Tensor y = tanh(x) * x;
  EXPECT_TRUE(y.is_leaf());
  EXPECT_FALSE(y.requires_grad());
}

TEST(LinearCrossEntropy, AcceptsViewsWithAnOffset) {
  Generator generator(3);
  const Tensor x = randn({1, 10, 4}, {.dtype = DType::f64}, generator), w = randn({6, 4}, x.options(), generator);
  const Tensor targets = randint(0, 6, {1, 10}, {.dtype = DType::i64}, generator);
  const auto step = [&](const Tensor& rows, const Tensor& classes) {
    const Tensor input = rows.detach().set_requires_grad();
    const Tensor loss = linear_cross_entropy(input, w, classes);
    return std::pair(loss.item(), grad({loss}, {input})[0]);
  };
  const Tensor rows = slice(x, 1, 5, 10), classes = slice(targets, 1, 5, 10);
  ASSERT_TRUE(rows.is_contiguous() && classes.is_contiguous());
  const auto got = step(rows, classes), want = step(rows.copy(), classes.copy());
  EXPECT_EQ(got.first, want.first);
  EXPECT_TRUE(bit_equal(got.second, want.second));
}

TEST(Dropout, DropsTheSameElementsForTheSameGeneratorState) {
  const Tensor x = ones({1000});
  Generator generator(9), copy = generator;
  const Tensor first = dropout(x, 0.25, generator), second = dropout(x, 0.25, generator);
  EXPECT_TRUE(bit_equal(dropout(x, 0.25, copy), first));
  EXPECT_FALSE(bit_equal(second, first));
  const double kept = sum(not_equal(first, zeros({}))).item();
  EXPECT_NEAR(kept, 750, 60);
  EXPECT_NEAR(max(first).item(), 1.0 / 0.75, 1e-6);
  EXPECT_TRUE(dropout(x, 0.0, generator).is_same(x));
}

TEST(Dropout, DropsTheSameElementsForPartOfASequence) {
  const Tensor whole = ones({3, 10, 4}).set_requires_grad();
  Generator generator(9), again = generator;
  const Tensor want = dropout(whole, 0.4, generator);
  const Tensor want_gradient = grad({want}, {whole}, {ones(want.shape())})[0];
  for (std::int64_t begin = 0; begin < 10; begin += 3) {
    const std::int64_t end = std::min<std::int64_t>(begin + 3, 10);
    again.set_state({9, 0, 0});
    const Tensor part = slice(whole.detach(), 1, begin, end).set_requires_grad();
    const Tensor got = dropout(part, 0.4, again, SequencePart{begin, 10});
    EXPECT_TRUE(bit_equal(got, slice(want, 1, begin, end))) << begin;
    EXPECT_TRUE(bit_equal(grad({got}, {part}, {ones(got.shape())})[0], slice(want_gradient, 1, begin, end))) << begin;
    EXPECT_EQ(again.state().offset, generator.state().offset) << "the range is that of the whole";
  }
  for (const kernels::PositionMap& map : {kernels::PositionMap{5, 5, 1, 1, 2}, kernels::PositionMap{5, 2, 1, 7, 1}}) {
    again.set_state({9, 0, 0});
    const auto of_map = [&](const Tensor& x) {
      std::vector<Tensor> steps;
      for (std::int64_t i = 0; i < 5; ++i)
        steps.push_back(slice(slice(x, 0, 1, 3), 1, map.position(i), map.position(i) + 1));
      return cat(steps, 1);
    };
    const SequencePart part{.whole = 10, .positions = map, .first_row = 1, .rows = 3};
    EXPECT_TRUE(bit_equal(dropout(of_map(whole.detach()), 0.4, again, part), of_map(want.detach()))) << map.stride;
    EXPECT_EQ(again.state().offset, generator.state().offset) << "the range is that of all rows";
  }
  EXPECT_THROW(dropout(whole, 0.4, generator, SequencePart{.whole = 10, .first_row = 1, .rows = 3}), ShapeError);
  EXPECT_THROW(dropout(whole, 0.4, generator, SequencePart{1, 10}), ShapeError);
  EXPECT_THROW(dropout(ones({4}), 0.4, generator, SequencePart{0, 4}), ShapeError);
}

TEST(Casting, MovesGradientsBackToTheDeviceAndDtypeOfTheInput) {
  const Device sim{DeviceType::sim, 0};
  const Tensor x = ones({2, 3}, {.dtype = DType::f16}).set_requires_grad();
  const Tensor y = to(to(x, DType::f32), sim);
  EXPECT_EQ(y.device(), sim);
  const Tensor gradient = grad({sum(y)}, {x})[0];
  EXPECT_EQ(describe(gradient), describe(x));
  EXPECT_FALSE(to(x, DType::i64).requires_grad());
  EXPECT_TRUE(to(x, DType::f16).is_same(x));
}

TEST(Arithmetic, KeepsTheSignOfZeroInProducts) {
  Tensor x = f64({-0.0, 0.0});
  const auto signs = [](const Tensor& y) {
    const Doubles values = y.to_vector<double>();
    return std::vector<bool>{std::signbit(values[0]), std::signbit(values[1])};
  };
  const std::vector<bool> kept{true, false}, turned{false, true};
  EXPECT_EQ(signs(x * 2.0), kept);
  EXPECT_EQ(signs(-2.0 * x), turned);
  EXPECT_EQ(signs(2.0 / f64({-infinity, infinity})), kept);
  x *= 2.0;
  EXPECT_EQ(signs(x), kept);
}

TEST(Power, HasZeroSlopeForExponentZero) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Tensor tiny = full({2}, dtype == DType::f64 ? 1e-309 : 1e-39, {.dtype = dtype}).set_requires_grad();
    EXPECT_EQ(grad({sum(pow(tiny, zeros({2}, {.dtype = dtype})))}, {tiny})[0].to_vector<double>(), (Doubles{0, 0}));
  }
  EXPECT_EQ(slopes([](const Tensor& x) { return pow(x, zeros({1}, x.options())); }, {std::nan("")}), Doubles{0});
  for (const double exponent : {1e19, 1e30, infinity})
    EXPECT_THROW(pow(from_data<std::int64_t>({2, 3}, {2}), exponent), ValueError);
}

TEST(Relu, HasSlopeOneAtNan) {
  const Tensor x = f64({std::nan("")}).set_requires_grad();
  for (const bool create_graph : {false, true})
    EXPECT_EQ(grad({relu(x)}, {x}, {ones({1}, x.options())}, {.create_graph = create_graph})[0].item(), 1.0);
}

TEST(Views, ShareTheirStorage) {
  const Tensor x = arange(0, 24);
  const Tensor y = reshape(x, {2, 3, 4});
  for (const Tensor& view : {y, transpose(y, 0, 2), slice(y, 2, 1, 4, 2), select(y, 1, -1), expand(x, {5, 24}),
                             split(y, 2, 2)[1], unsqueeze(y, 0), contiguous(y)})
    EXPECT_TRUE(view.shares_storage_with(x));
  EXPECT_FALSE(reshape(transpose(y, 0, 2), {24}).shares_storage_with(x));
  EXPECT_EQ(select(select(slice(y, 2, 1, 4, 2), 0, 1), 0, 2).to_vector<double>(), (Doubles{21, 23}));
}

// bf16 cannot represent 256 + 1.
TEST(OperatorEdges, HalfTypeSumsKeepSmallNumbers) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor many = ones({5000}, {.dtype = dtype}), nowhere = zeros({5000}, {.dtype = DType::i64});
    EXPECT_NEAR(scatter_add(zeros({1}, {.dtype = dtype}), 0, nowhere, many).item(), 5000, 8) << to_string(dtype);
    const Tensor x = ones({1}, {.dtype = dtype}).set_requires_grad();
    EXPECT_NEAR(grad({gather(x, 0, nowhere)}, {x}, {many})[0].item(), 5000, 8) << to_string(dtype);
  }
}

}  // namespace
}  // namespace poolgrad
