// Everything that changes a score or a weight, alone and together, under several patterns: against the definition.
#include <gtest/gtest.h>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::causal;
using testing_support::defined;
using testing_support::infinity;
using testing_support::make_call;
using testing_support::normal;
using testing_support::Outcome;
using testing_support::Sizes;

std::vector<Case> some_cases() {
  std::vector<Case> chosen;
  for (const Case& one : testing_support::pattern_cases())
    for (const char* name : {"dense", "window(3, 7)", "documents", "dilated nested", "dilated not nested",
                             "blocks listed", "dilated + window", "window + offsets + sinks"})
      if (one.name == name) chosen.push_back(one);
  for (const std::size_t i : {0u, 3u, 5u}) chosen.push_back(causal(chosen[i]));
  return chosen;
}

/// The call under all the patterns.
void expect_definitions(const Call& call, const std::string& what) {
  for (const Case& one : some_cases()) {
    const auto want = defined(call, one.m);
    for (const int count : testing_support::one_or_many) {
      const testing_support::Threads threads(count);
      EXPECT_EQ(difference(attended(call, one.pattern), want, 1e-12), "")
          << what << ", " << one.name << ", " << count << " threads";
    }
  }
}

const Sizes square{2, 37, 37, 4, 2, 4, 4}, cross{1, 29, 71, 3, 1, 5, 2};

TEST(AttendScores, AreScaled) {
  for (const double scale : {0.0, -0.7, 2.0}) {
    Call call = make_call(square);
    call.options.scale = scale;
    expect_definitions(call, "scale " + std::to_string(scale));
  }
}

TEST(AttendScores, AreCapped) {
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options.softcap = 0.8;
    expect_definitions(call, to_string(sizes));
  }
}

TEST(AttendScores, TakeABiasOfEveryBroadcastShape) {
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    Call call = make_call(square);
    const auto size = [&](int bit, std::int64_t whole) { return broadcast >> bit & 1 ? 1 : whole; };
    call.options.bias = normal({size(0, 2), size(1, 4), size(2, 37), size(3, 37)}, 3);
    const Case one = some_cases()[static_cast<std::size_t>(broadcast) % some_cases().size()];
    const testing_support::Threads threads(testing_support::one_or_many[broadcast / 3 % 2]);
    EXPECT_EQ(difference(attended(call, one.pattern), defined(call, one.m), 1e-12), "")
        << to_string(call.options.bias.shape()) << ", " << one.name;
  }
  Call call = make_call(cross);
  call.options.bias = normal({1, 3, 29, 71}, 4);
  expect_definitions(call, "whole bias");
}

TEST(AttendScores, TakeABiasOfAnyLayout) {
  Call call = make_call(cross);
  const Tensor bias = normal({1, 3, 29, 71}, 4);
  call.options.bias = permute(contiguous(permute(bias, {3, 1, 2, 0})), {3, 1, 2, 0});
  Call plain = call;
  plain.options.bias = bias;
  EXPECT_EQ(difference(attended(call, Pattern::causal()), attended(plain, Pattern::causal()), 0.0), "");
}

TEST(AttendScores, SumTheGradientOfABroadcastBiasInPiecesOfAnyLength) {
  // 2048 x 2300 x 2 is more than is held at a time.
  Call call = make_call({2, 2048, 2300, 2, 1, 2, 2});
  call.options.bias = normal({1, 2, 1, 2300}, 5);
  const Pattern pattern = Pattern::window(30, 9);
  Call whole = call;
  whole.options.bias = contiguous(expand(call.options.bias, {2, 2, 2048, 2300}));
  const auto got = attended(call, pattern), want = attended(whole, pattern);
  EXPECT_TRUE(all_close(got.dbias, sum(want.dbias, {0, 2}, true), 1e-11, 1e-12));
  EXPECT_TRUE(bit_equal(got.dq, want.dq));
}

TEST(AttendScores, MayBeMaskedByABiasOfMinusInfinity) {
  Call call = make_call(square);
  call.options.bias =
      masked_fill(normal({1, 1, 37, 37}, 6), less(normal({37, 37}, 7), zeros({37, 37}, {DType::f64})), -infinity);
  slice(call.options.bias, 2, 5, 9).fill(-infinity);  // these queries see nothing
  for (const Case& one : some_cases()) {
    const auto got = attended(call, one.pattern);
    EXPECT_EQ(difference(got, defined(call, one.m), 1e-12), "") << one.name;
    EXPECT_EQ(norm(slice(got.out, 1, 5, 9)).item(), 0.0);
  }
}

TEST(AttendScores, LeaveOutPaddedKeys) {
  for (const Sizes& sizes : {square, cross})
    for (const bool biased : {false, true}) {
      Call call = make_call(sizes);
      const Shape by_key{sizes.batch, sizes.keys};
      call.options.key_padding = less(normal(by_key, 8), full(by_key, -0.3, {.dtype = DType::f64}));
      if (biased) call.options.bias = normal({1, sizes.heads, sizes.queries, 1}, 3);
      Call want = call;
      const Shape whole{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
      const Tensor bias = biased ? call.options.bias : zeros({1, 1, 1, 1}, {.dtype = DType::f64});
      want.options.key_padding = {};
      want.options.bias = masked_fill(contiguous(expand(bias, whole)),
                                      reshape(call.options.key_padding, {sizes.batch, 1, 1, sizes.keys}), -infinity);
      for (const Case& one : some_cases()) {
        Outcome expected = defined(want, one.m), got = attended(call, one.pattern);
        expected.dbias = biased ? sum(expected.dbias, {0, 3}, true) : Tensor();
        EXPECT_EQ(difference(got, expected, 1e-11), "") << one.name << (biased ? ", biased" : "");
      }
    }
}

TEST(AttendScores, FallWithTheDistanceUnderAlibi) {
  for (const Sizes& sizes : {square, cross})
    for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
      Call call = make_call(sizes);
      call.options.alignment = alignment;
      call.options.alibi = alibi_slopes(sizes.heads, {.dtype = DType::f64});
      expect_definitions(call, to_string(sizes));
    }
}

TEST(AttendScores, ShareTheSumWithSinks) {
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options.sinks = normal({sizes.heads}, 8);
    expect_definitions(call, to_string(sizes));
  }
}

TEST(AttendScores, ASinkThatWeighsNothingChangesNothing) {
  Call call = make_call(square), plain = make_call(square);
  call.options.sinks = full({4}, -infinity, {.dtype = DType::f64});
  for (const Case& one : some_cases()) {
    const auto got = attended(call, one.pattern);
    EXPECT_EQ(norm(got.dsinks).item(), 0.0) << one.name;
    auto rest = got;
    rest.dsinks = {};
    EXPECT_EQ(difference(rest, attended(plain, one.pattern), 1e-14), "") << one.name;
  }
}

TEST(AttendScores, DropWeightsAfterNormalising) {
  for (const double dropout : {0.2, 0.9}) {
    Generator generator(21);
    for (const Sizes& sizes : {square, cross}) {
      Call call = make_call(sizes);
      call.options.dropout = dropout;
      call.options.generator = &generator;
      call.options.first_batch = dropout < 0.5 ? 0 : 5;
      for (const Case& one : some_cases()) {
        const auto want = defined(call, one.m);  // before the generator moves on
        EXPECT_EQ(difference(attended(call, one.pattern), want, 1e-12), "") << one.name;
      }
    }
  }
}

TEST(AttendScores, DropTheShareOfWeightsThatIsAskedForAndTheSameAgainFromTheSameState) {
  Generator generator(31);
  const Tensor x = zeros({2, 200, 4, 2}, {.dtype = DType::f64}),
               ones_like_x = ones({2, 200, 4, 2}, {.dtype = DType::f64});
  const AttendOptions options{.dropout = 0.3, .generator = &generator};
  const auto state = generator.state();
  const Tensor first = attend(x, x, ones_like_x, Pattern::dense(), options).out;
  EXPECT_NEAR(mean(first).item(), 1.0, 0.01);                                      // of 320 000 weights
  EXPECT_NEAR(mean(poolgrad::square(first - 1.0)).item(), 0.3 / 0.7 / 200, 1e-3);  // each row averages 200
  const Tensor second = attend(x, x, ones_like_x, Pattern::dense(), options).out;
  EXPECT_GT(max_difference(first, second), 1e-3);
  generator.set_state(state);
  EXPECT_TRUE(bit_equal(attend(x, x, ones_like_x, Pattern::dense(), options).out, first));
}

TEST(AttendScores, CombineAllOptions) {
  Generator generator(22);
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options = {.scale = 0.6,
                    .softcap = 1.5,
                    .bias = normal({1, sizes.heads, sizes.queries, sizes.keys}, 9),
                    .alibi = alibi_slopes(sizes.heads, {.dtype = DType::f64}),
                    .sinks = normal({sizes.heads}, 10),
                    .dropout = 0.3,
                    .generator = &generator,
                    .first_batch = 2};
    for (const int count : testing_support::one_or_many)
      for (const Case& one : some_cases()) {
        const testing_support::Threads threads(count);
        const auto want = defined(call, one.m);
        EXPECT_EQ(difference(attended(call, one.pattern), want, 1e-12), "") << one.name << ", " << count << " threads";
      }
  }
}

TEST(AttendScores, PassGradientsOfEitherResultAlone) {
  for (const bool out : {true, false}) {
    Call call = make_call(square);
    (out ? call.grad_lse : call.grad_out) = {};
    call.options.sinks = normal({4}, 11);
    expect_definitions(call, out ? "out alone" : "lse alone");
  }
}

TEST(AttendScores, TakeExtraOperandsOfAnyFloatingDtype) {
  Call call = make_call(square);
  call.options.bias = normal({1, 4, 1, 37}, 12, DType::f32);
  call.options.sinks = normal({4}, 13, DType::bf16);
  call.options.alibi = alibi_slopes(4);
  const auto got = attended(call, Pattern::causal());
  EXPECT_EQ(got.dbias.dtype(), DType::f32);
  EXPECT_EQ(got.dsinks.dtype(), DType::bf16);
  Call same = rounded(call, DType::f64);
  const auto want = attended(same, Pattern::causal());
  EXPECT_TRUE(bit_equal(got.out, want.out));
  EXPECT_TRUE(bit_equal(got.dsinks, to(want.dsinks, DType::bf16)));
}

TEST(Alibi, SlopesAreThoseOfThePaper) {
  EXPECT_EQ(alibi_slopes(8, {.dtype = DType::f64}).to_vector<double>(),
            (std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}));
  const Tensor six = alibi_slopes(6, {.dtype = DType::f64});
  EXPECT_TRUE(all_close(six, from_data<double>({0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}, {6}), 1e-15));
}

}  // namespace
}  // namespace poolgrad::attention
