// Calls that attend() refuses: the messages, and that a refused call leaves no allocation behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "attention/attend.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/attention/attend_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;
using testing_support::infinity;
using testing_support::sim;

const Shape plain{1, 4, 2, 8};

template <class E>
std::string refusal(const AttendOptions& options, const Pattern& pattern = Pattern::dense()) {
  const Tensor q = zeros(plain), k = zeros(plain), v = zeros(plain);
  return error_of<E>([&] { attend(q, k, v, pattern, options); });
}
std::string misshapen(const Shape& q, const Shape& k, const Shape& v) {
  return error_of<ShapeError>([&] { attend(zeros(q), zeros(k), zeros(v)); });
}

TEST(AttendErrors, NameTheReasonAndAllOperands) {
  EXPECT_EQ(misshapen({1, 4, 3, 8}, {1, 4, 2, 8}, {1, 4, 2, 8}),
            "[attend] the heads of q are not a multiple of those of k: q (1, 4, 3, 8) f32 on cpu, k (1, 4, 2, 8) f32 "
            "on cpu, v (1, 4, 2, 8) f32 on cpu");
  EXPECT_EQ(refusal<ShapeError>({.bias = zeros({1, 3, 4, 4})}),
            "[attend] the bias must be (B or 1, Hq or 1, Nq or 1, Nk or 1): q (1, 4, 2, 8) f32 on cpu, k (1, 4, 2, 8) "
            "f32 on cpu, v (1, 4, 2, 8) f32 on cpu, bias (1, 3, 4, 4) f32 on cpu");
}

TEST(AttendErrors, CoverTheShapesOfQueriesKeysAndValues) {
  EXPECT_THAT(misshapen({4, 2, 8}, plain, plain), HasSubstr("q, k and v must be (B, N, H, D)"));
  EXPECT_THAT(misshapen(plain, plain, {1, 4, 2, 8, 1}), HasSubstr("q, k and v must be (B, N, H, D)"));
  EXPECT_THAT(misshapen({2, 4, 2, 8}, plain, plain), HasSubstr("batch sizes differ"));
  EXPECT_THAT(misshapen(plain, plain, {2, 4, 2, 8}), HasSubstr("batch sizes differ"));
  EXPECT_THAT(misshapen(plain, plain, {1, 5, 2, 8}), HasSubstr("k and v differ in length"));
  EXPECT_THAT(misshapen(plain, plain, {1, 4, 1, 8}), HasSubstr("k and v differ in heads"));
  EXPECT_THAT(misshapen(plain, {1, 4, 2, 6}, plain), HasSubstr("q and k differ in width per head"));
  EXPECT_THAT(misshapen(plain, {1, 4, 0, 8}, {1, 4, 0, 8}), HasSubstr("not a multiple of those of k"));
}

TEST(AttendErrors, CoverDtypesAndDevices) {
  const Tensor x = zeros(plain);
  EXPECT_THAT(error_of<DTypeError>([&] { attend(x, x, to(x, DType::f64)); }), HasSubstr("operands differ in dtype"));
  EXPECT_THAT(error_of<DTypeError>([&] { attend(to(x, DType::i64), to(x, DType::i64), to(x, DType::i64)); }),
              HasSubstr("needs a floating dtype"));
  EXPECT_THAT(error_of<DeviceError>([&] { attend(x, to(x, sim), x); }), HasSubstr("different devices"));
  EXPECT_THAT(error_of<ValueError>([&] { attend(x, {}, x); }), HasSubstr("k is undefined"));
  EXPECT_THAT(refusal<DTypeError>({.bias = zeros({1, 1, 4, 4}, {.dtype = DType::i64})}),
              HasSubstr("bias needs a floating dtype"));
  EXPECT_THAT(refusal<DTypeError>({.alibi = zeros({2}, {.dtype = DType::i32})}),
              HasSubstr("alibi needs a floating dtype"));
  EXPECT_THAT(refusal<DTypeError>({.sinks = zeros({2}, {.dtype = DType::boolean})}),
              HasSubstr("sinks needs a floating dtype"));
  for (const AttendOptions& options :
       {AttendOptions{.bias = zeros({1, 1, 4, 4}, {.device = sim})},
        AttendOptions{.alibi = zeros({2}, {.device = sim})}, AttendOptions{.sinks = zeros({2}, {.device = sim})}})
    EXPECT_THAT(refusal<DeviceError>(options), HasSubstr("operands live on different devices"));
}

TEST(AttendErrors, CoverEveryOption) {
  for (const double scale : {std::nan(""), infinity, -infinity})
    EXPECT_THAT(refusal<ValueError>({.scale = scale}), HasSubstr("the scale is not finite"));
  EXPECT_THAT(refusal<ValueError>({.scale = 1e39}), HasSubstr("the scale is not finite")) << "in f32";
  for (const double softcap : {0.0, -1.0, infinity, std::nan(""), 1e39, 1e-50})
    EXPECT_THAT(refusal<ValueError>({.softcap = softcap}), HasSubstr("is not a positive number"));
  for (const double dropout : {-0.1, 1.0, infinity, std::nan("")})
    EXPECT_THAT(refusal<ValueError>({.dropout = dropout}), HasSubstr("is outside [0, 1)"));
  for (const Shape& shape : {Shape{4, 4}, Shape{2, 1, 4, 4}, Shape{1, 1, 4, 3}, Shape{1, 1, 5, 4}})
    EXPECT_THAT(refusal<ShapeError>({.bias = zeros(shape)}), HasSubstr("the bias must be"));
  EXPECT_THAT(refusal<ShapeError>({.alibi = zeros({3})}), HasSubstr("the ALiBi slopes must be (Hq)"));
  EXPECT_THAT(refusal<ValueError>({.alibi = zeros({2}).set_requires_grad()}), HasSubstr("slopes take no gradient"));
  EXPECT_THAT(refusal<ShapeError>({.key_padding = zeros({1, 5}, {.dtype = DType::boolean})}),
              HasSubstr("the key padding must be (B, Nk) with Nk 4"));
  EXPECT_THAT(refusal<DTypeError>({.key_padding = zeros({1, 4})}), HasSubstr("the key padding must be bool"));
  EXPECT_THAT(refusal<DeviceError>({.key_padding = zeros({1, 4}, {.dtype = DType::boolean, .device = sim})}),
              HasSubstr("operands live on different devices"));
  EXPECT_THAT(refusal<ShapeError>({.sinks = zeros({1, 2})}), HasSubstr("the sinks must be (Hq)"));
  const Tensor many = expand(zeros({1, 1, 1, 1}), {1, 1, 65537, 1});
  EXPECT_THAT(error_of<ValueError>([&] { attend(many, many, many, Pattern::dense(), {.dropout = 0.5}); }),
              HasSubstr("dropout takes at most 65536 batches and 65536 heads"));
  EXPECT_THAT(refusal<ValueError>({.first_batch = -1}), HasSubstr("first_batch must be at least 0, but is -1"));
  EXPECT_THAT(refusal<ValueError>({}, Pattern::dilated({8}, {2}, {.require_divisible = true})), HasSubstr("8"));
}

TEST(AttendErrors, CoverWritingOverQueries) {
  const auto refused = [](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& given = {},
                          const Pattern& pattern = Pattern::dense()) {
    AttendOptions options = given;
    options.out_over_q = true;
    return error_of<ValueError>([&] { attend(q, k, v, pattern, options); });
  };
  const Tensor x = zeros(plain), y = zeros(plain);
  EXPECT_THAT(refused(x, y, zeros({1, 4, 2, 4})), HasSubstr("out_over_q needs values as wide as queries"));
  EXPECT_THAT(refused(x, zeros(plain).set_requires_grad(), y),
              HasSubstr("out_over_q needs operands without gradients"));
  EXPECT_THAT(refused(expand(zeros({1, 1, 2, 8}), plain), y, y), HasSubstr("needs queries without repeated elements"));
  EXPECT_THAT(refused(x, x, y), HasSubstr("out_over_q needs queries that share no memory with keys and values"));
  const Tensor packed = zeros({1, 4, 4, 8});
  EXPECT_THAT(refused(slice(packed, 2, 0, 2), slice(packed, 2, 1, 3), y),
              HasSubstr("share no memory with keys and values"));
  const Tensor both = zeros({2, 4, 2, 8});
  EXPECT_THAT(refused(slice(both, 0, 0, 1), y, y, {.sinks = select(select(select(both, 3, 0), 1, 0), 0, 1)}),
              HasSubstr("share no memory with bias, alibi and sinks"));
}

TEST(AttendErrors, CoverGradientsOverResults) {
  EXPECT_THAT(error_of<ValueError>([&] {
                attend(zeros(plain), zeros(plain), zeros({1, 4, 2, 6}), Pattern::dense(), {.dq_over_out = true});
              }),
              HasSubstr("dq_over_out needs values as wide as queries"));
  const Tensor q = ones(plain).set_requires_grad(), k = ones(plain).set_requires_grad(), v = ones(plain);
  const Tensor out = attend(q, k, v, Pattern::causal(), {.dq_over_out = true}).out;
  const Tensor used = square(out);  // keeps `out` for its backward
  out.backward(ones(plain), /*retain_graph=*/true);
  EXPECT_THAT(error_of<Error>([&] { out.backward(ones(plain), true); }),
              HasSubstr("[attend] a saved tensor (1, 4, 2, 8) f32 on cpu was written in place"));
  EXPECT_THAT(error_of<Error>([&] { used.backward(ones(plain)); }), HasSubstr("[square] a saved tensor"));
}

TEST(AttendErrors, RefuseAPartOfASequence) {
  EXPECT_THAT(refusal<ValueError>({.whole = 8}),
              HasSubstr("[attend] whole is only for modules that divide sequences among ranks: q (1, 4, 2, 8)"));
}

TEST(AttendErrors, CoverGapsInKeyPositions) {
  EXPECT_THAT(
      refusal<ValueError>({.key_positions = {.gap_begin = 5, .gap = 2}}),
      HasSubstr("[attend] a gap of 2 positions before key 5 is negative or lies outside the keys: q (1, 4, 2, 8)"));
  EXPECT_THAT(refusal<ValueError>({.key_positions = {.gap_begin = 0, .gap = -1}}), HasSubstr("a gap of -1 positions"));
  for (const KeyPositions& far : {KeyPositions{.gap_begin = 1, .gap = INT64_MAX}, KeyPositions{.whole = INT64_MAX}})
    EXPECT_THAT(refusal<ValueError>({.key_positions = far}),
                HasSubstr("positions of keys must be below 2^60, but reach "));
}

TEST(AttendErrors, LeakNoMemoryAndTheNextCallWorks) {
  const Tensor x = ones(plain).set_requires_grad();
  const auto live = [] { return allocator_for(cpu).statistics().requested_bytes.current; };
  const std::uint64_t before = live();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(attend(x, x, x, Pattern::dense(), {.dropout = 2.0}), ValueError);
    EXPECT_THROW(attend(x, x, x, Pattern::dense(), {.bias = zeros({7, 1, 1, 1})}), ShapeError);
    EXPECT_THROW(attend(x, x, x, Pattern::dense(), {.out_over_q = true}), ValueError);
    EXPECT_THROW(attend(x, x, zeros({1, 5, 2, 8})), ShapeError);
  }
  EXPECT_EQ(live(), before);
  EXPECT_TRUE(allclose(attend(x, x, x).out, ones(plain)));
}

}  // namespace
}  // namespace poolgrad::attention
