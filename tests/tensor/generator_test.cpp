#include "tensor/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <thread>

#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

TEST(Generator, HandsOutConsecutiveRanges) {
  Generator generator(9, 4);
  EXPECT_EQ(generator.take(10).offset, 0u);
  const kernels::RandomKey key = generator.take(5);
  EXPECT_EQ(key.seed, 9u);
  EXPECT_EQ(key.use, 4u);
  EXPECT_EQ(key.offset, 10u);
  EXPECT_EQ(generator.take(0).offset, 15u);
  EXPECT_EQ(testing_support::error_of<ValueError>([&] { generator.take(-1); }), "[generator] cannot take -1 numbers");
}

TEST(Generator, ContinuesFromASavedState) {
  Generator generator(1);
  generator.take(100);
  const kernels::RandomKey state = generator.state();
  const Tensor first = randn({50}, {}, generator);
  generator.set_state(state);
  EXPECT_TRUE(bit_equal(randn({50}, {}, generator), first));
}

TEST(Generator, StartsAgainWithANewSeed) {
  Generator generator(1);
  const Tensor first = randn({50}, {}, generator);
  generator.set_seed(1);
  EXPECT_TRUE(bit_equal(randn({50}, {}, generator), first));
  generator.set_seed(2);
  EXPECT_FALSE(bit_equal(randn({50}, {}, generator), first));
}

TEST(Generator, KindsOfNumbersShareNoBits) {
  // The same elements of the same seed, drawn as three kinds: were they made of the same bits, the uniform numbers
  // would give away the normal ones and what dropout keeps.
  constexpr std::int64_t n = 2000;
  const kernels::RandomKey key{1, 0, 0};
  const Tensor u = Tensor::empty({n}, {.dtype = DType::f64}), z = Tensor::empty({n}, {.dtype = DType::f64});
  const Tensor kept = Tensor::empty({2 * n}), one = ones({2 * n});
  kernels::uniform({}, key, u.view(), 0, 1);
  kernels::normal({}, key, z.view(), 0, 1);
  kernels::dropout({}, key, kept.view(), one.view(), 0.5);
  int normal_known = 0, dropout_known = 0;
  for (std::int64_t i = 0; i < n / 2; ++i) {
    const double radius = std::sqrt(-2 * std::log(1 - u.data<double>()[2 * i]));
    const double angle = 2 * std::numbers::pi * u.data<double>()[2 * i + 1];
    normal_known += std::abs(z.data<double>()[i] - radius * std::cos(angle)) < 1e-6;
    dropout_known += (kept.data<float>()[2 * i] == 0) == (u.data<double>()[i] < 0.5);
  }
  EXPECT_EQ(normal_known, 0);
  EXPECT_NEAR(dropout_known, n / 4, 100) << "as often as by chance";
}

TEST(Generator, EveryThreadHasItsDefault) {
  manual_seed(11);
  const Tensor here = randn({8});
  Tensor there;
  std::thread([&] {
    manual_seed(11);
    there = randn({8});
  }).join();
  EXPECT_TRUE(bit_equal(here, there)) << "the other thread did not move this one's generator";
  EXPECT_EQ(default_generator().state().offset, 8u);
}

}  // namespace
}  // namespace poolgrad
