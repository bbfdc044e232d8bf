// Options of scores and weights on the CPU: the tests of attend_on.h, and cases that take too long on an emulated
// device.
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_on.h"

namespace poolgrad::attention::testing_support {

INSTANTIATE_TEST_SUITE_P(On, AttendScoresOn, ::testing::Values(cpu), name_of);
INSTANTIATE_TEST_SUITE_P(On, AttendMemoryOn, ::testing::Values(cpu), name_of);

}  // namespace poolgrad::attention::testing_support

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::make_call;
using testing_support::normal;

TEST(AttendScores, SumTheBroadcastBiasGradientInPiecesOfAnyLength) {
  // The 2048 x 2300 x 2 gradients of pairs are too many for one piece.
  Call call = make_call({2, 2048, 2300, 2, 1, 2, 2});
  call.options.bias = normal({1, 2, 1, 2300}, 5);
  const Pattern pattern = Pattern::window(30, 9);
  Call whole = call;
  whole.options.bias = contiguous(expand(call.options.bias, {2, 2, 2048, 2300}));
  const auto got = attended(call, pattern), want = attended(whole, pattern);
  EXPECT_TRUE(allclose(got.dbias, sum(want.dbias, {0, 2}, true), 1e-11, 1e-12));
  EXPECT_TRUE(bit_equal(got.dq, want.dq));
}

TEST(AttendScores, DropTheRequestedShareAndRepeatItFromTheSameState) {
  Generator generator(31);
  const Tensor x = zeros({2, 200, 4, 2}, {.dtype = DType::f64}),
               ones_like_x = ones({2, 200, 4, 2}, {.dtype = DType::f64});
  const AttendOptions options{.dropout = 0.3, .generator = &generator};
  const auto state = generator.state();
  const Tensor first = attend(x, x, ones_like_x, Pattern::dense(), options).out;
  EXPECT_NEAR(mean(first).item(), 1.0, 0.01);                                      // mean of 320 000 weights
  EXPECT_NEAR(mean(poolgrad::square(first - 1.0)).item(), 0.3 / 0.7 / 200, 1e-3);  // each row averages 200
  const Tensor second = attend(x, x, ones_like_x, Pattern::dense(), options).out;
  EXPECT_GT(max_difference(first, second), 1e-3);
  generator.set_state(state);
  EXPECT_TRUE(bit_equal(attend(x, x, ones_like_x, Pattern::dense(), options).out, first));
}

TEST(Alibi, SlopesAreThoseOfThePaper) {
  EXPECT_EQ(alibi_slopes(8, {.dtype = DType::f64}).to_vector<double>(),
            (std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}));
  const Tensor six = alibi_slopes(6, {.dtype = DType::f64});
  EXPECT_TRUE(allclose(six, from_data<double>({0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}, {6}), 1e-15));
}

}  // namespace
}  // namespace poolgrad::attention
