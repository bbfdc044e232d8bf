// linear_cross_entropy in half types: logits and gradient sums are f32.
#include <gtest/gtest.h>

#include <vector>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

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

}  // namespace
}  // namespace poolgrad
