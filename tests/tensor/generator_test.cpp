#include "tensor/generator.h"

#include <gtest/gtest.h>

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
