// A user's tests of a gradient, with nothing but the installed package and GoogleTest.
#include <poolgrad/autograd/testing_gtest.h>

#include <gtest/gtest.h>

#include <poolgrad/poolgrad.h>

namespace {

poolgrad::Tensor soft_cap(const poolgrad::Tensor& x) { return 2.0 * poolgrad::tanh(x / 2.0); }

TEST(SoftCap, HasTheRightGradientForAnyInput) {
  EXPECT_TRUE(poolgrad::check_property(
      [](poolgrad::Draw& draw) { return poolgrad::gradcheck(soft_cap, draw.tensor(draw.shape())); }));
}

TEST(SoftCap, StaysBelowTheCap) {
  const poolgrad::Tensor x = poolgrad::from_data({-1e6, 0.0, 1e6}, {3});
  EXPECT_TENSOR_NEAR(soft_cap(x), poolgrad::from_data({-2.0f, 0.0f, 2.0f}, {3}));
  EXPECT_FALSE(poolgrad::tensors_near(soft_cap(x), x));
}

TEST(Layer, HasTheRightGradients) {
  poolgrad::nn::Linear layer(3, 2, {}, {.dtype = poolgrad::DType::f64});
  EXPECT_GRADCHECK(layer, poolgrad::randn({4, 3}, {.dtype = poolgrad::DType::f64}).set_requires_grad());
}

}  // namespace
