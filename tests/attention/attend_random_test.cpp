// Random patterns, options, sizes, layouts and numbers of threads, compared with the definition.
#include <gtest/gtest.h>

#include <random>

#include "allocator/error.h"
#include "autograd/operators.h"
#include "tests/attention/attend_support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::defined;
using testing_support::make_call;
using testing_support::normal;
using testing_support::Sizes;

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  /// Random in low .. high, both included.
  std::int64_t roll(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return roll(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

Case random_case(Dice& dice, const std::vector<Case>& all) {
  const auto any = [&] {
    return all[static_cast<std::size_t>(dice.roll(0, static_cast<std::int64_t>(all.size()) - 1))];
  };
  Case one = any();
  for (std::int64_t more = dice.roll(0, 2); more > 0; --more) {
    const Case other = any();
    const bool adds = dice.one_in(2);
    try {
      one.pattern = adds ? one.pattern + other.pattern : one.pattern | other.pattern;
    } catch (const ValueError&) {
      continue;  // exceeds the limits of a pattern
    }
    one.m = adds ? oracle::sum(one.m, other.m) : oracle::either(one.m, other.m);
    one.name = "(" + one.name + (adds ? " + " : " | ") + other.name + ")";
    one.least_heads = std::max(one.least_heads, other.least_heads);
  }
  if (dice.one_in(3)) {
    const std::int64_t left = dice.roll(0, 60), right = dice.roll(0, 60);
    one.pattern = one.pattern & Pattern::window(left, right);
    one.m = oracle::both(one.m, oracle::window(left, right));
    one.name += " & window(" + std::to_string(left) + ", " + std::to_string(right) + ")";
  }
  return dice.one_in(3) ? causal(one) : one;
}

Call random_call(Dice& dice, const Sizes& s, Generator& generator) {
  Call call = make_call(s, DType::f64, static_cast<std::uint64_t>(dice.roll(0, 1000)));
  AttendOptions& options = call.options;
  if (dice.one_in(3)) options.alignment = Alignment::top_left;
  if (dice.one_in(3)) options.scale = 0.1 * static_cast<double>(dice.roll(-9, 9));
  if (dice.one_in(3)) options.softcap = 0.5 * static_cast<double>(dice.roll(1, 6));
  if (dice.one_in(3)) {
    const auto size = [&](std::int64_t whole) { return dice.one_in(2) ? 1 : whole; };
    options.bias = normal({size(s.batch), size(s.heads), size(s.queries), size(s.keys)}, 5);
  }
  if (dice.one_in(3)) options.alibi = alibi_slopes(s.heads, {.dtype = DType::f64});
  if (dice.one_in(3)) options.sinks = normal({s.heads}, 6);
  if (dice.one_in(3)) options.dropout = 0.1 * static_cast<double>(dice.roll(1, 9));
  if (dice.one_in(3)) options.first_batch = dice.roll(0, 9);
  options.generator = &generator;
  if (dice.one_in(4)) (dice.one_in(2) ? call.grad_out : call.grad_lse) = {};
  for (Tensor* x : {&call.q, &call.k, &call.v})
    if (dice.one_in(3)) *x = permute(contiguous(permute(*x, {2, 1, 0, 3})), {2, 1, 0, 3});
  return call;
}

TEST(AttendRandom, FollowsTheDefinition) {
  const std::uint64_t seed = test_seed();
  const std::vector<Case> all = testing_support::pattern_cases();
  for (std::uint64_t round = 0; round < 60; ++round) {
    Dice dice(seed + round);
    const Case one = random_case(dice, all);
    const std::int64_t kv_heads = dice.roll(1, 3), group = dice.roll(1, 3);
    const Sizes sizes{dice.roll(1, 2), dice.roll(0, 70), dice.roll(0, 90), kv_heads * group,
                      kv_heads,        dice.roll(1, 17), dice.roll(1, 17)};
    if (sizes.heads < one.least_heads) continue;
    Generator generator(seed);
    const Call call = random_call(dice, sizes, generator);
    const auto want = defined(call, one.m);
    const testing_support::Threads threads(static_cast<int>(dice.roll(1, 4)));
    EXPECT_EQ(difference(attended(call, one.pattern), want, 1e-11), "")
        << "round " << round << " of seed " << seed << ": " << one.name << ", " << to_string(sizes);
  }
}

}  // namespace
}  // namespace poolgrad::attention
