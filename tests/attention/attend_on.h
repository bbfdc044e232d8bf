// Tests of attend() for any device. Options of scores and weights, alone and combined, are compared with the definition
// under several patterns. Other tests overwrite operands with results. The including file names the devices
// (INSTANTIATE_TEST_SUITE_P).
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention::testing_support {

/// Eleven patterns of one pass or of several, whose later passes take the results of earlier ones. They contain every
/// kind of run, lists and documents.
inline std::vector<Case> some_cases() {
  std::vector<Case> chosen;
  for (const Case& one : pattern_cases())
    for (const char* name : {"dense", "window(3, 7)", "documents", "dilated nested", "dilated not nested",
                             "blocks listed", "dilated + window", "window + offsets + sinks"})
      if (one.name == name) chosen.push_back(one);
  for (const std::size_t i : {0u, 3u, 5u}) chosen.push_back(causal(chosen[i]));
  return chosen;
}

inline const Sizes square{2, 37, 37, 4, 2, 4, 4}, cross{1, 29, 71, 3, 1, 5, 2};

class OnDevice : public ::testing::TestWithParam<Device> {
 protected:
  /// The number of CPU threads does not affect a GPU.
  static std::vector<int> thread_counts() { return GetParam().is_cpu() ? std::vector<int>{1, 5} : std::vector<int>{1}; }
  static Outcome run(const Call& call, const Pattern& pattern) { return attended(call, pattern, GetParam()); }
  static void expect_definition(const Call& call, const Case& one, const std::string& what) {
    const Outcome want = defined(call, one.m);  // before the call advances a generator
    for (const int count : thread_counts()) {
      const Threads threads(count);
      Generator generator = call.options.generator ? *call.options.generator : Generator(0);
      Call own = call;
      if (call.options.generator) own.options.generator = &generator;
      EXPECT_EQ(difference(run(own, one.pattern), want, 1e-12), "")
          << what << ", " << one.name << ", " << count << " threads";
    }
  }
  /// Compares under all these patterns.
  static void expect_definitions(const Call& call, const std::string& what) {
    for (const Case& one : some_cases()) expect_definition(call, one, what);
  }
};
using AttendScoresOn = OnDevice;
using AttendMemoryOn = OnDevice;

inline std::string name_of(const ::testing::TestParamInfo<Device>& info) {
  return std::string(info.param.is_cpu() ? "cpu" : info.param.is_sim() ? "sim" : "cuda");
}

TEST_P(AttendScoresOn, AreScaled) {
  for (const double scale : {0.0, -0.7, 2.0}) {
    Call call = make_call(square);
    call.options.scale = scale;
    expect_definitions(call, "scale " + std::to_string(scale));
  }
}

TEST_P(AttendScoresOn, AreCapped) {
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options.softcap = 0.8;
    expect_definitions(call, to_string(sizes));
  }
}

TEST_P(AttendScoresOn, TakeABiasOfEveryBroadcastShape) {
  const std::vector<Case> cases = some_cases();
  for (std::size_t broadcast = 0; broadcast < 16; ++broadcast) {
    Call call = make_call(square);
    const auto size = [&](int bit, std::int64_t whole) { return broadcast >> bit & 1 ? 1 : whole; };
    call.options.bias = normal({size(0, 2), size(1, 4), size(2, 37), size(3, 37)}, 3);
    expect_definition(call, cases[broadcast % cases.size()], "bias " + poolgrad::to_string(call.options.bias.shape()));
  }
  Call call = make_call(cross);
  call.options.bias = normal({1, 3, 29, 71}, 4);
  expect_definitions(call, "whole bias");
}

TEST_P(AttendScoresOn, TakeABiasOfAnyLayout) {
  Call call = make_call(cross);
  const Tensor bias = normal({1, 3, 29, 71}, 4);
  call.options.bias = permute(contiguous(permute(bias, {3, 1, 2, 0})), {3, 1, 2, 0});
  Call plain = call;
  plain.options.bias = bias;
  EXPECT_EQ(difference(run(call, Pattern::causal()), run(plain, Pattern::causal()), 0.0), "");
}

TEST_P(AttendScoresOn, MayBeMaskedByABiasOfMinusInfinity) {
  Call call = make_call(square);
  call.options.bias =
      masked_fill(normal({1, 1, 37, 37}, 6), less(normal({37, 37}, 7), zeros({37, 37}, {DType::f64})), -infinity);
  slice(call.options.bias, 2, 5, 9).fill(-infinity);  // these queries see no key
  for (const Case& one : some_cases()) {
    const Outcome got = run(call, one.pattern);
    EXPECT_EQ(difference(got, defined(call, one.m), 1e-12), "") << one.name;
    EXPECT_EQ(norm(slice(got.out, 1, 5, 9)).item(), 0.0);
  }
}

TEST_P(AttendScoresOn, LeaveOutPaddedKeys) {
  for (const Sizes& sizes : {square, cross})
    for (const bool biased : {false, true}) {
      Call call = make_call(sizes);
      const Shape by_key{sizes.batch, sizes.keys};
      call.options.key_padding = less(normal(by_key, 8), full(by_key, -0.3, {.dtype = DType::f64}));
      if (biased) call.options.bias = normal({1, sizes.heads, sizes.queries, 1}, 3);
      expect_definitions(call, to_string(sizes) + (biased ? ", biased" : ""));
    }
}

/// With and without a bias, for few queries and for many.
TEST_P(AttendScoresOn, IgnoreTheContentsOfPaddedKeys) {
  for (const Sizes& sizes : {square, cross, Sizes{2, 3, 71, 4, 2, 8, 5}})
    for (const bool biased : {false, true}) {
      Call clean = make_call(sizes);
      const Shape by_key{sizes.batch, sizes.keys};
      clean.options.key_padding = less(normal(by_key, 8), full(by_key, -0.3, {.dtype = DType::f64}));
      if (biased) clean.options.bias = normal({1, sizes.heads, sizes.queries, 1}, 3);
      const Tensor rows = reshape(clean.options.key_padding, {sizes.batch, sizes.keys, 1, 1});
      double evil = infinity;
      for (const Case& one : some_cases()) {
        Call call = clean;
        call.k = masked_fill(clean.k, rows, evil);
        call.v = masked_fill(clean.v, rows, evil);
        EXPECT_EQ(difference(run(call, one.pattern), defined(clean, one.m), 1e-12), "")
            << evil << " " << to_string(sizes) << (biased ? ", biased" : "") << " " << one.name;
        evil = std::isnan(evil) ? -infinity : evil < 0 ? infinity : std::nan("");
      }
    }
}

TEST_P(AttendScoresOn, AreAlignedAtEitherEnd) {
  Call longer = make_call(cross), shorter = make_call({1, 71, 29, 3, 1, 5, 2});
  for (Call* call : {&longer, &shorter}) {
    call->options.alignment = Alignment::top_left;
    expect_definitions(*call, "top left");
  }
  expect_definitions(make_call({1, 71, 29, 3, 1, 5, 2}), "bottom right");
}

TEST_P(AttendScoresOn, TakeKeyPositionsWithAGap) {
  Generator generator(23);
  for (const KeyPositions& at : {KeyPositions{.gap_begin = 30, .gap = 17}, {.gap_begin = 0, .gap = 9}}) {
    Call call = make_call(cross);
    call.options.key_positions = at;
    call.options.alibi = alibi_slopes(3, {.dtype = DType::f64});
    call.options.dropout = 0.2;
    call.options.generator = &generator;
    expect_definitions(call, "a gap at " + std::to_string(at.gap_begin));
  }
}

TEST_P(AttendScoresOn, FallWithTheDistanceUnderAlibi) {
  for (const Sizes& sizes : {square, cross})
    for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
      Call call = make_call(sizes);
      call.options.alignment = alignment;
      call.options.alibi = alibi_slopes(sizes.heads, {.dtype = DType::f64});
      expect_definitions(call, to_string(sizes));
    }
}

TEST_P(AttendScoresOn, ShareTheSumWithSinks) {
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options.sinks = normal({sizes.heads}, 8);
    expect_definitions(call, to_string(sizes));
  }
}

TEST_P(AttendScoresOn, ASinkOfMinusInfinityChangesNothing) {
  Call call = make_call(square), plain = make_call(square);
  call.options.sinks = full({4}, -infinity, {.dtype = DType::f64});
  for (const Case& one : some_cases()) {
    const Outcome got = run(call, one.pattern);
    EXPECT_EQ(norm(got.dsinks).item(), 0.0) << one.name;
    Outcome rest = got;
    rest.dsinks = {};
    EXPECT_EQ(difference(rest, run(plain, one.pattern), 1e-14), "") << one.name;
  }
}

TEST_P(AttendScoresOn, ApplyDropoutAfterNormalization) {
  Generator generator(21);
  for (const double dropout : {0.2, 0.9})
    for (const Sizes& sizes : {square, cross}) {
      Call call = make_call(sizes);
      call.options.dropout = dropout;
      call.options.generator = &generator;
      call.options.first_batch = dropout < 0.5 ? 0 : 5;
      expect_definitions(call, "dropout " + std::to_string(dropout));
      generator.take(1);
    }
}

TEST_P(AttendScoresOn, CombineAllOptions) {
  Generator generator(22);
  for (const Sizes& sizes : {square, cross}) {
    Call call = make_call(sizes);
    call.options = {.scale = 0.6,
                    .key_positions = {.gap_begin = 11, .gap = 6},
                    .softcap = 1.5,
                    .bias = normal({1, sizes.heads, sizes.queries, sizes.keys}, 9),
                    .alibi = alibi_slopes(sizes.heads, {.dtype = DType::f64}),
                    .sinks = normal({sizes.heads}, 10),
                    .dropout = 0.3,
                    .generator = &generator,
                    .first_batch = 2};
    expect_definitions(call, to_string(sizes));
  }
}

TEST_P(AttendScoresOn, PassGradientsOfEitherResultAlone) {
  for (const bool out : {true, false}) {
    Call call = make_call(square);
    (out ? call.grad_lse : call.grad_out) = {};
    call.options.sinks = normal({4}, 11);
    expect_definitions(call, out ? "out alone" : "lse alone");
  }
}

TEST_P(AttendScoresOn, TakeExtraOperandsOfAnyFloatingDtype) {
  Call call = make_call(square);
  call.options.bias = normal({1, 4, 1, 37}, 12, DType::f32);
  call.options.sinks = normal({4}, 13, DType::bf16);
  call.options.alibi = alibi_slopes(4);
  const Outcome got = run(call, Pattern::causal());
  EXPECT_EQ(got.dbias.dtype(), DType::f32);
  EXPECT_EQ(got.dsinks.dtype(), DType::bf16);
  Call same = rounded(call, DType::f64);
  const Outcome want = run(same, Pattern::causal());
  EXPECT_TRUE(bit_equal(got.out, want.out));
  EXPECT_TRUE(bit_equal(got.dsinks, to(want.dsinks, DType::bf16)));
}

/// Rows without elements: every score is 0, and results are empty.
TEST_P(AttendScoresOn, AreZeroForRowsOfZeroWidth) {
  for (const Case& one : some_cases()) {
    expect_definition(make_call({2, 37, 37, 4, 2, 0, 4}), one, "no width");
    expect_definition(make_call({2, 37, 37, 4, 2, 4, 0}), one, "no width of values");
    expect_definition(make_call({2, 37, 37, 4, 2, 0, 0}), one, "neither");
  }
}

TEST_P(AttendMemoryOn, ResultsWrittenOverOperandsAreTheSame) {
  const Pattern pattern = Pattern::dilated({16, 64}, {1, 2}) & Pattern::causal();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Call call = make_call({2, 131, 131, 4, 2, 16, 16}, dtype);
    const Outcome want = run(call, pattern);
    call.options.dq_over_out = true;
    const Outcome over = run(call, pattern);
    EXPECT_EQ(difference({{}, over.lse, over.dq, over.dk, over.dv, {}, {}},
                         {{}, want.lse, want.dq, want.dk, want.dv, {}, {}}, 0.0),
              "");
    const Tensor packed = to(cat({call.q, call.k, call.v}, 2), GetParam());  // slices of one tensor
    const Tensor q = slice(packed, 2, 0, 4);
    const Attended result = attend(q, slice(packed, 2, 4, 6), slice(packed, 2, 6, 8), pattern, {.out_over_q = true});
    EXPECT_TRUE(result.out.shares_storage_with(packed));
    EXPECT_EQ(difference({to(result.out, cpu), to(result.lse, cpu), {}, {}, {}, {}, {}},
                         {want.out, want.lse, {}, {}, {}, {}, {}}, 0.0),
              "");
  }
}

}  // namespace poolgrad::attention::testing_support
