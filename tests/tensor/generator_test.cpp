#include "tensor/generator.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <functional>
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

TEST(RandomLogGuard, ReplaysRecordedRangesAndRestoresGenerators) {
  Generator a(1), b(2);
  a.take(7);
  RandomLog log;
  std::vector<Tensor> first;
  {
    const RandomLogGuard guard(log, RandomLogGuard::records);
    first = {randn({4}, {}, a), randn({6}, {}, b), randn({5}, {}, a)};
  }
  ASSERT_EQ(log.size(), 3u);
  const std::uint64_t after = a.take(0).offset;
  {
    const RandomLogGuard guard(log, RandomLogGuard::replays);
    EXPECT_TRUE(bit_equal(randn({4}, {}, a), first[0]));
    EXPECT_TRUE(bit_equal(randn({6}, {}, a), first[1])) << "whichever generator is asked";
    EXPECT_EQ(testing_support::error_of<Error>([&] { a.take(3); }),
              "[generator] a recomputation asks for 3 random numbers where the first run took " +
                  std::to_string(log[2].count) + " at this point");
    EXPECT_TRUE(bit_equal(randn({5}, {}, b), first[2]));
    EXPECT_EQ(testing_support::error_of<Error>([&] { a.take(3); }),
              "[generator] a recomputation asks for 3 random numbers where the first run took no more");
  }
  EXPECT_EQ(a.take(0).offset, after);
}

TEST(RandomLogGuard, NestedLogsReceiveTheReplayedRanges) {
  Generator generator(1);
  RandomLog outer, inner, around;
  const RandomLogGuard all(around, RandomLogGuard::records);
  {
    const RandomLogGuard guard(outer, RandomLogGuard::records);
    generator.take(3);
    generator.take(4);
  }
  {
    const RandomLogGuard replay(outer, RandomLogGuard::replays);
    generator.take(3);
    const RandomLogGuard guard(inner, RandomLogGuard::records);
    generator.take(4);
  }
  ASSERT_EQ(inner.size(), 1u);
  EXPECT_EQ(inner[0].key.offset, 3u);
  EXPECT_EQ(inner[0].count, 4);
  EXPECT_EQ(around.size(), 2u) << "what is drawn again is not drawn";
}

TEST(Generator, RestartsWithANewSeed) {
  Generator generator(1);
  const Tensor first = randn({50}, {}, generator);
  generator.set_seed(1);
  EXPECT_TRUE(bit_equal(randn({50}, {}, generator), first));
  generator.set_seed(2);
  EXPECT_FALSE(bit_equal(randn({50}, {}, generator), first));
}

TEST(Generator, DrawsDifferentBitsForEachKindOfNumber) {
  // Elements of the same seed and number, drawn as three kinds. If they came from the same bits, the uniform numbers
  // would predict the normal ones and the elements that dropout keeps.
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

TEST(Generator, CopiesAreIndependent) {
  Generator generator(3);
  generator.take(10);
  Generator copy = generator;
  copy.take(5);
  EXPECT_EQ(generator.state().offset, 10u);
  EXPECT_EQ(copy.state().offset, 15u);
  copy = default_generator();
  const auto before = default_generator().state().offset;
  copy.take(7);
  EXPECT_EQ(default_generator().state().offset, before);
}

/// Runs `body` on a new thread.
void elsewhere(const std::function<void()>& body) { std::thread(body).join(); }

TEST(DefaultGenerator, DiffersBetweenThreadsAndIsSeededForAll) {
  manual_seed(11);
  const Tensor here = randn({8});
  Tensor there, afterwards;
  kernels::RandomKey key{};
  std::barrier step(2);
  std::thread other([&] {
    there = randn({8});
    step.arrive_and_wait();
    step.arrive_and_wait();  // seeded again in between
    key = default_generator().state();
    afterwards = randn({8});
  });
  step.arrive_and_wait();
  EXPECT_EQ(default_generator().state().offset, 8u) << "the other thread did not move this one's generator";
  manual_seed(11);
  step.arrive_and_wait();
  other.join();
  EXPECT_FALSE(bit_equal(here, there));
  EXPECT_TRUE(bit_equal(randn({8}), here));
  EXPECT_TRUE(bit_equal(afterwards, there)) << "a seed reaches threads that run";
  EXPECT_EQ(key.seed, 11u);
  EXPECT_EQ(key.offset, 0u);
}

TEST(DefaultGenerator, NumbersThreadsInTheOrderOfTheirFirstUse) {
  manual_seed(12);
  EXPECT_EQ(default_generator().state().use, 0u) << "the first thread of this program";
  std::uint64_t uses[2] = {};
  for (std::uint64_t& use : uses) elsewhere([&] { use = default_generator().state().use; });
  EXPECT_GT(uses[0], 0u);
  EXPECT_EQ(uses[1], uses[0] + 1);
  Tensor drawn;
  elsewhere([&] { drawn = randn({8}); });
  Generator same(12, uses[1] + 1);
  EXPECT_TRUE(bit_equal(drawn, randn({8}, {}, same))) << "what a thread draws can be said beforehand";
}

TEST(DefaultGenerator, KeepsTheStreamChosenByItsThread) {
  kernels::RandomKey before{}, after{};
  elsewhere([&] {
    default_generator().set_state({5, 1000, 3});
    before = default_generator().take(4);
    manual_seed(6);
    after = default_generator().state();
  });
  EXPECT_EQ(before.use, 1000u);
  EXPECT_EQ(before.offset, 3u);
  EXPECT_EQ(after.seed, 6u);
  EXPECT_EQ(after.use, 1000u);
  EXPECT_EQ(after.offset, 0u);
}

TEST(DefaultGenerator, MayOutliveItsThread) {
  Generator* kept = nullptr;
  elsewhere([&] { kept = &default_generator(); });
  manual_seed(7);
  EXPECT_EQ(kept->take(2).seed, 7u);
  EXPECT_EQ(kept->state().use, 0u) << "this thread's stream, not that of the one that has ended";
  EXPECT_EQ(default_generator().state().offset, 2u);
}

}  // namespace
}  // namespace poolgrad
