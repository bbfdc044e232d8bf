// linear_cross_entropy in half types: logits and gradient sums are f32.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

using testing_support::error_of;
using Doubles = std::vector<double>;

TEST(LinearCrossEntropy, KeepsTheLossOfLargeLogitsInHalfTypes) {
  Generator generator(test_seed());
  const Tensor targets = randint(0, 5, {70}, {.dtype = DType::i64}, generator);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = to(randn({70, 8}, {.dtype = DType::f64}, generator) * 6.0, dtype);
    const Tensor weight = to(randn({5, 8}, {.dtype = DType::f64}, generator) * 6.0, dtype);
    const double exact = linear_cross_entropy(to(x, DType::f64), to(weight, DType::f64), targets).item();
    // Logits near 100 have an f32 spacing of 2^-18. A half type would round them to 2^-2 or 2^-5.
    EXPECT_NEAR(linear_cross_entropy(x, weight, targets).item(), exact, 1e-4) << to_string(dtype);
  }
}

TEST(LinearCrossEntropy, AccumulatesTheWeightGradientInF32OverAllChunks) {
  const std::int64_t rows = 300 * 1024, classes = 2;  // 600 chunks; 256 + 1 is 256 in bf16
  const Tensor targets = zeros({rows}, {.dtype = DType::i64});
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = ones({rows, 1}, {.dtype = dtype});
    const Tensor weight = zeros({classes, 1}, {.dtype = dtype}).set_requires_grad();
    const Tensor gradient = grad({linear_cross_entropy(x, weight, targets)}, {weight})[0];
    EXPECT_EQ(gradient.to_vector<double>(), (Doubles{-0.5, 0.5})) << to_string(dtype);
  }
}

TEST(LinearCrossEntropy, ASoftcapIsThatOfTheDefinition) {
  Generator generator(test_seed());
  const std::int64_t rows = 1100;  // two chunks
  const Tensor x = (randn({rows, 8}, {.dtype = DType::f64}, generator) * 4.0).set_requires_grad();
  const Tensor weight = randn({5, 8}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor targets = randint(0, 5, {rows}, {.dtype = DType::i64}, generator);
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const Tensor logits = tanh(matmul(x, transpose(weight, 0, 1)) / 3.0) * 3.0;
    const Tensor want = cross_entropy(logits, targets, {.reduction = reduction});
    const CrossEntropyOptions options{.reduction = reduction, .softcap = 3};
    const Tensor found = linear_cross_entropy(x, weight, targets, options);
    EXPECT_LT(relative_error(found, want), 1e-12);
    const auto expected = grad({want}, {x, weight}), gradients = grad({found}, {x, weight});
    for (std::size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(gradients[i], expected[i]), 1e-12) << i;
    const NoGradGuard no_grad;
    EXPECT_LT(relative_error(linear_cross_entropy(x, weight, targets, options), want), 1e-12);
    EXPECT_LT(relative_error(cross_entropy(matmul(x, transpose(weight, 0, 1)), targets, options), want), 1e-12);
  }
}

TEST(LinearCrossEntropy, ASoftcapHasTheGradientsOfCentralDifferences) {
  Generator generator(test_seed());
  const Tensor x = (randn({4, 3}, {.dtype = DType::f64}, generator) * 2.0).set_requires_grad();
  const Tensor weight = randn({5, 3}, {.dtype = DType::f64}, generator).set_requires_grad();
  const Tensor targets = randint(0, 5, {4}, {.dtype = DType::i64}, generator);
  const auto loss = [&](const Tensor& a, const Tensor& b) {
    return linear_cross_entropy(a, b, targets, {.softcap = 1.5});
  };
  EXPECT_TRUE(gradcheck(loss, x, weight));
  EXPECT_TRUE(gradgradcheck(loss, x, weight));
}

TEST(LinearCrossEntropy, ASoftcapOfHalfTypesIsComputedInF32) {
  Generator generator(test_seed());
  const Tensor targets = randint(0, 5, {70}, {.dtype = DType::i64}, generator);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor x = to(randn({70, 8}, {.dtype = DType::f64}, generator) * 6.0, dtype);
    const Tensor weight = to(randn({5, 8}, {.dtype = DType::f64}, generator) * 6.0, dtype);
    const CrossEntropyOptions options{.softcap = 30};
    const double exact = linear_cross_entropy(to(x, DType::f64), to(weight, DType::f64), targets, options).item();
    EXPECT_NEAR(linear_cross_entropy(x, weight, targets, options).item(), exact, 1e-4) << to_string(dtype);
  }
}

TEST(LinearCrossEntropy, RefusesASoftcapThatIsNotFromZeroOn) {
  const Tensor x = ones({2, 3}), weight = ones({4, 3}), targets = zeros({2}, {.dtype = DType::i64});
  EXPECT_EQ(
      error_of<ValueError>([&] { linear_cross_entropy(x, weight, targets, {.softcap = -1}); }),
      "[linear_cross_entropy] the softcap must be 0 or from 1e-30 to 1e30, but is -1: x (2, 3) f32 on cpu, weight (4, "
      "3) f32 on cpu, targets (2,) i64 on cpu");
  for (const double cap : {1e39, 1e-40, std::numeric_limits<double>::quiet_NaN()})  // or their inverses overflow f32
    EXPECT_THROW(linear_cross_entropy(x, weight, targets, {.softcap = cap}), ValueError) << cap;
  EXPECT_EQ(error_of<ValueError>([&] { nll_loss(x, targets, {.softcap = 1}); }),
            "[nll_loss] probabilities take no softcap: log_probabilities (2, 3) f32 on cpu, targets (2,) i64 on cpu");
}

}  // namespace
}  // namespace poolgrad
