// In-place writes: copy_from across shapes, dtypes and overlapping memory, fill, version counters, and the writes that
// gradients forbid.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing::ElementsAre;
using testing_support::error_of;
using testing_support::offsets_of;

/// A record that only states the tensor's kind.
class FixedRecord : public GradRecord {
 public:
  FixedRecord(bool requires_grad, bool leaf) : requires_grad_(requires_grad), leaf_(leaf) {}
  bool requires_grad() const override { return requires_grad_; }
  void set_requires_grad(bool value) override { requires_grad_ = value; }
  bool is_leaf() const override { return leaf_; }
  std::string made_by() const override { return leaf_ ? "" : "matmul"; }
  Tensor grad() const override { return grad_; }
  void set_grad(const Tensor& grad) override { grad_ = grad; }
  void backward(const Tensor&, const Tensor&, bool, bool) override { ++backwards; }

  int backwards = 0;

 private:
  bool requires_grad_, leaf_;
  Tensor grad_;
};

Tensor wanting_gradient(const Shape& shape) {
  Tensor x = zeros(shape);
  x.set_grad_record(std::make_shared<FixedRecord>(true, true));
  return x;
}

TEST(CopyFrom, BroadcastsAndConverts) {
  Tensor x = zeros({2, 3}, {.dtype = DType::i64});
  x.copy_from(from_data({1.5, -2.5, 3.9}, {3}));
  EXPECT_THAT(x.to_vector<std::int64_t>(), ElementsAre(1, -2, 3, 1, -2, 3));
  x.copy_from(scalar(7));
  EXPECT_THAT(x.to_vector<std::int64_t>(), ElementsAre(7, 7, 7, 7, 7, 7));
  EXPECT_EQ(error_of<ShapeError>([&] { x.copy_from(zeros({4})); }),
            "[copy_from] the source does not broadcast to the destination: destination (2, 3) i64 on cpu, source (4,) "
            "f32 on cpu");
}

TEST(CopyFrom, RejectsASourceThatRequiresGrad) {
  const Tensor source = wanting_gradient({2});
  Tensor x = ones({2});
  const auto version = x.storage()->version();
  EXPECT_EQ(error_of<Error>([&] { x.copy_from(source); }),
            "[copy_from] the gradient of the source would be lost; detach() it or use a NoGradGuard: destination (2,) "
            "f32 on cpu, source (2,) f32 on cpu");
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 1));
  EXPECT_EQ(x.storage()->version(), version);
  x.copy_from(source.detach());
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 0));
  x.fill(1);
  const NoGradGuard no_grad;
  x.copy_from(source);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 0));
}

TEST(CopyFrom, WritesThroughAView) {
  const Tensor x = zeros({2, 3});
  Tensor column = x.alias(selected(x.geometry(), 1, 1));
  column.copy_from(from_data({5.0f, 6.0f}, {2}));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 5, 0, 0, 6, 0));
}

TEST(CopyFrom, ReadsTheOldValuesOfOverlappingViews) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    const Tensor x = arange(0, 4096, 1, {.dtype = DType::i32});
    const std::int64_t n = 1 + pick(1000);
    const auto any = [&] {
      const std::int64_t step = 1 + pick(4);
      return sliced(x.geometry(), 0, pick(4096 - n * step + 1), INT64_MAX, step);
    };
    const Geometry from = sliced(any(), 0, 0, n, 1), to = sliced(any(), 0, 0, n, 1);
    std::vector<std::int32_t> expected = x.to_vector<std::int32_t>();
    const std::vector<std::int32_t> old = expected;
    const std::vector<std::int64_t> reads = offsets_of(from), writes = offsets_of(to);
    for (std::size_t i = 0; i < reads.size(); ++i)
      expected[static_cast<std::size_t>(writes[i])] = old[static_cast<std::size_t>(reads[i])];

    x.alias(to).copy_from(x.alias(from));
    ASSERT_EQ(x.to_vector<std::int32_t>(), expected);
  }
}

TEST(CopyFrom, TransposesASquareInPlace) {
  Tensor x = arange(0, 9).alias({{3, 3}, {3, 1}, 0});
  x.copy_from(x.alias(transposed(x.geometry(), 0, 1)));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
  x.copy_from(x.alias(selected(x.geometry(), 0, 1)));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 4, 7, 1, 4, 7, 1, 4, 7)) << "broadcast of one of its own rows";
}

TEST(CopyFrom, ToItselfChangesNothing) {
  Tensor x = arange(0, 4);
  x.copy_from(x);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 1, 2, 3));
}

TEST(InPlace, WritesAdvanceTheVersionOfTheSharedStorage) {
  Tensor x = zeros({4});
  EXPECT_EQ(x.storage()->version(), 0u) << "a fresh tensor was never written in place";
  const Tensor view = x.detach();
  x.fill(1);
  EXPECT_EQ(view.storage()->version(), 1u);
  x.copy_from(ones({4}));
  EXPECT_EQ(view.storage()->version(), 2u);
  x.data<float>()[0] = 3;
  x.bump_version();
  EXPECT_EQ(view.storage()->version(), 3u);
  EXPECT_EQ(from_data({1.0f}, {1}).storage()->version(), 0u);
}

TEST(InPlace, RejectsADestinationWithRepeatedElements) {
  const Tensor x = zeros({1, 3});
  Tensor wide = x.alias(expanded(x.geometry(), {2, 3}));
  EXPECT_EQ(error_of<ShapeError>([&] { wide.fill(1); }),
            "[fill] several elements of the destination share memory: (2, 3) f32 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] {
              wide.copy_from(zeros({2, 3}));
            }),
            "[copy_from] several elements of the destination share memory: (2, 3) f32 on cpu");
}

TEST(InPlace, NeverLosesAGradientSilently) {
  Tensor x = wanting_gradient({2});
  EXPECT_EQ(error_of<Error>([&] { x.fill(1); }),
            "[fill] an in-place write to a tensor that requires grad needs a NoGradGuard: (2,) f32 on cpu");
  EXPECT_EQ(error_of<Error>([&] { x.copy_from(ones({2})); }),
            "[copy_from] an in-place write to a tensor that requires grad needs a NoGradGuard: (2,) f32 on cpu");
  EXPECT_EQ(x.storage()->version(), 0u);
  const NoGradGuard guard;
  x.fill(1);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(1, 1));
}

TEST(GradMode, GuardsNestAndEndInOrder) {
  EXPECT_TRUE(grad_enabled());
  {
    const NoGradGuard off;
    EXPECT_FALSE(grad_enabled());
    {
      const EnableGradGuard on;
      EXPECT_TRUE(grad_enabled());
    }
    EXPECT_FALSE(grad_enabled());
  }
  EXPECT_TRUE(grad_enabled());
}

TEST(GradRecord, OnlyFloatingLeavesMayRequireGradients) {
  Tensor integers = zeros({3}, {.dtype = DType::i64});
  EXPECT_EQ(error_of<DTypeError>([&] { integers.set_requires_grad(); }),
            "[set_requires_grad] only floating dtypes have gradients: (3,) i64 on cpu");
  EXPECT_NO_THROW(integers.set_requires_grad(false));
  Tensor result = zeros({3});
  result.set_grad_record(std::make_shared<FixedRecord>(true, false));
  EXPECT_FALSE(result.is_leaf());
  EXPECT_EQ(error_of<Error>([&] { result.set_requires_grad(false); }),
            "[set_requires_grad] only for leaves; this is the result of matmul: (3,) f32 on cpu");
}

TEST(GradRecord, ViewsAndCopiesHaveNone) {
  const Tensor x = wanting_gradient({2});
  EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(x.detach().requires_grad());
  EXPECT_FALSE(x.copy().requires_grad());
  EXPECT_FALSE(x.on_host().requires_grad());
  EXPECT_TRUE(zeros({2}).is_leaf());
}

TEST(GradRecord, AGradientLooksLikeItsTensor) {
  Tensor x = wanting_gradient({2});
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(error_of<ShapeError>([&] { x.set_grad(zeros({3})); }),
            "[set_grad] the gradient differs from its tensor: gradient (3,) f32 on cpu, tensor (2,) f32 on cpu");
  EXPECT_THROW(x.set_grad(zeros({2}, {.dtype = DType::f64})), ShapeError);
  x.set_grad(ones({2}));
  EXPECT_THAT(x.grad().to_vector<float>(), ElementsAre(1, 1));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(GradRecord, BackwardNeedsRequiresGrad) {
  EXPECT_EQ(error_of<Error>([] { zeros({}).backward(); }),
            "[backward] the tensor requires no gradient: none of its inputs does (set_requires_grad()), or a "
            "NoGradGuard was active: () f32 on cpu");
  const Tensor x = wanting_gradient({});
  x.backward();
  EXPECT_EQ(static_cast<FixedRecord&>(*x.grad_record()).backwards, 1);
}

}  // namespace
}  // namespace poolgrad
