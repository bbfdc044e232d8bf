// Elements selected by tensors: x[index], x[mask], index_put and scatter_reduce. Shapes, ties and kinks are those of
// PyTorch 2.15 unless the headers differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/autograd/operator_table.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing::Numbers;
using testing_support::error_of;
using Doubles = std::vector<double>;

Tensor f64_values(std::initializer_list<double> values) { return Numbers::values(values); }
Tensor places_of(std::initializer_list<std::int64_t> values) { return Numbers::integers(values); }
Tensor truth(std::initializer_list<bool> values, const Shape& shape) { return from_data<bool>(values, shape); }

TEST(IndexByTensor, HasTheShapeOfTheIndexAndTheTrailingDimensions) {
  const Tensor x = reshape(arange(0, 24), {2, 3, 4});
  EXPECT_EQ(x[places_of({1, 0, 1})].shape(), (Shape{3, 3, 4}));
  EXPECT_EQ(x[reshape(places_of({1, 0}), {2, 1})].shape(), (Shape{2, 1, 3, 4}));
  EXPECT_EQ(x[scalar(1, {.dtype = DType::i64})].shape(), (Shape{3, 4}));
  EXPECT_EQ(x[places_of({})].shape(), (Shape{0, 3, 4}));
  EXPECT_TRUE(bit_equal(x[places_of({1, -2})], stack({x[1], x[0]})));
}

TEST(IndexByMask, HasARowForEachTrueElement) {
  const Tensor x = reshape(arange(0, 24), {2, 3, 4});
  EXPECT_EQ(x[x > 5.0].to_vector<double>(), arange(6, 24).to_vector<double>());
  EXPECT_EQ(x[truth({true, false}, {2})].shape(), (Shape{1, 3, 4}));
  const Tensor rows = x[truth({true, false, true, false, false, false}, {2, 3})];
  EXPECT_TRUE(bit_equal(rows, stack({x[{0, 0}], x[{0, 2}]})));
  EXPECT_EQ(x[x < 0.0].shape(), Shape{0});
  EXPECT_EQ(x[scalar(1, {.dtype = DType::boolean})].shape(), (Shape{1, 2, 3, 4}))
      << "a mask without dimensions adds one";
  EXPECT_EQ(scalar(2.0)[scalar(0, {.dtype = DType::boolean})].shape(), Shape{0});
  EXPECT_EQ(zeros({0, 3})[truth({}, {0})].shape(), (Shape{0, 3}));
}

TEST(IndexByMask, TakesEveryDtypeAndLayout) {
  const Tensor chosen = truth({false, true, true, true, false, false}, {2, 3});
  for (const DType dtype : testing_support::all_dtypes) {
    const Tensor x = to(reshape(arange(0, 6), {2, 3}), dtype), turned = transpose(clone(transpose(x, 0, 1)), 0, 1);
    EXPECT_EQ(x[chosen].dtype(), dtype);
    EXPECT_TRUE(bit_equal(x[chosen], turned[transpose(clone(transpose(chosen, 0, 1)), 0, 1)])) << to_string(dtype);
  }
}

TEST(IndexByMask, PassesGradcheck) {
  const Tensor x = Numbers(3).normal({3, 4}).set_requires_grad(), chosen = x.detach() > 0.0;
  const auto positive = [&](const Tensor& in) { return square(in[chosen]); };
  EXPECT_TRUE(gradcheck(positive, x));
  EXPECT_TRUE(gradgradcheck(positive, x));
  EXPECT_EQ(grad({sum(x[chosen])}, {x})[0].to_vector<double>(), to(chosen, DType::f64).to_vector<double>());
}

TEST(IndexByMask, HasNoRowsOnASimulatedDevice) {
  const Device sim{DeviceType::sim, 0};
  const Tensor x = zeros({4, 3}, {.device = sim});
  EXPECT_EQ(x[ones({4}, {.dtype = DType::boolean, .device = sim})].shape(), (Shape{0, 3}));
}

TEST(IndexByTensor, NamesTheRejectedIndex) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of<IndexError>([&] { x[places_of({0, 2})]; }), "[index] index 2 at position (1,) is outside [-2, 2)");
  EXPECT_EQ(error_of<IndexError>([&] { x[places_of({-3})]; }), "[index] index -3 at position (0,) is outside [-2, 2)");
  EXPECT_EQ(error_of<ShapeError>([&] {
              x[truth({true, false, true}, {3})];
            }),
            "[index] the mask does not have the leading dimensions of x: x (2, 3) f32 on cpu, mask (3,) bool on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { x[zeros({2})]; }),
            "[index] indices must be i64, or one bool mask: x (2, 3) f32 on cpu, index (2,) f32 on cpu");
  EXPECT_EQ(error_of<IndexError>([] { scalar(1.0)[places_of({0})]; }),
            "[index] 1 indices are too many: x () f32 on cpu");
}

TEST(IndexPut, ReplacesOrAdds) {
  const Tensor x = f64_values({1, 2, 3}), at = places_of({0, 0, -1}), values = f64_values({1, 10, 5});
  EXPECT_EQ(index_put(x, {at}, values).to_vector<double>(), (Doubles{10, 2, 5}));
  EXPECT_EQ(index_put(x, {at}, values, true).to_vector<double>(), (Doubles{12, 2, 8}));
  EXPECT_EQ(x.to_vector<double>(), (Doubles{1, 2, 3}));
  const Tensor grid = index_put(zeros({2, 3}), {reshape(places_of({0, 1}), {2, 1}), places_of({0, 2})}, scalar(5.0));
  EXPECT_EQ(grid.to_vector<double>(), (Doubles{5, 0, 5, 5, 0, 5}));
  EXPECT_EQ(index_put(x, {x > 1.0}, scalar(0.0, x.options())).to_vector<double>(), (Doubles{1, 0, 0}));
  EXPECT_EQ(index_put(x, {x > 1.0}, f64_values({4, 5}), true).to_vector<double>(), (Doubles{1, 6, 8}));
  EXPECT_EQ(index_put(zeros({2, 2, 2}), {places_of({1})}, ones({2})).to_vector<double>(),
            (Doubles{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(IndexPut, NamesTheRejectedOperands) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of<ValueError>([&] { index_put(x, {}, zeros({})); }), "[index_put] no index given");
  EXPECT_EQ(error_of<ShapeError>([&] {
              index_put(x, {places_of({0, 1})}, zeros({2}));
            }),
            "[index_put] values do not broadcast to (2, 3): x (2, 3) f32 on cpu, values (2,) f32 on cpu");
  EXPECT_EQ(error_of<IndexError>([&] {
              index_put(x, {places_of({0}), places_of({0}), places_of({0})}, zeros({}));
            }),
            "[index_put] 3 indices are too many: x (2, 3) f32 on cpu");
  EXPECT_THROW(index_put(x, {places_of({0})}, zeros({3}, {.dtype = DType::f64})), DTypeError);
}

TEST(IndexPut, AccumulatesManySmallNumbersInHalfTypes) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor nowhere = zeros({5000}, {.dtype = DType::i64});
    EXPECT_NEAR(index_put(zeros({1}, {.dtype = dtype}), {nowhere}, scalar(1.0, {.dtype = dtype}), true).item(), 5000,
                8);
  }
}

/// Result, gradient of x, gradient of the source.
std::vector<Doubles> scattered(ScatterReduction reduction, bool include_self, std::initializer_list<double> x,
                               std::initializer_list<double> source, std::initializer_list<std::int64_t> index) {
  const Tensor own = f64_values(x).set_requires_grad(), sent = f64_values(source).set_requires_grad();
  const Tensor out = scatter_reduce(own, 0, places_of(index), sent, reduction, include_self);
  const std::vector<Tensor> slopes = grad({sum(out)}, {own, sent});
  return {out.to_vector<double>(), slopes[0].to_vector<double>(), slopes[1].to_vector<double>()};
}

TEST(ScatterReduce, MatchesPyTorch) {
  const auto with = [](ScatterReduction reduction) {
    return scattered(reduction, true, {1, 5, 2}, {5, 5, 2, 0}, {1, 1, 2, 2});
  };
  const double third = 1.0 / 3;
  using All = std::vector<Doubles>;
  EXPECT_EQ(with(ScatterReduction::sum), (All{{1, 15, 4}, {1, 1, 1}, {1, 1, 1, 1}}));
  EXPECT_EQ(with(ScatterReduction::prod), (All{{1, 125, 0}, {1, 25, 0}, {25, 25, 0, 4}}));
  EXPECT_EQ(with(ScatterReduction::mean), (All{{1, 5, 4 * third}, {1, third, third}, {third, third, third, third}}));
  EXPECT_EQ(with(ScatterReduction::amax), (All{{1, 5, 2}, {1, third, 0.5}, {third, third, 0.5, 0}}));
  EXPECT_EQ(with(ScatterReduction::amin), (All{{1, 5, 0}, {1, third, 0}, {third, third, 0, 1}}));
}

TEST(ScatterReduce, ExcludesXFromReducedPositions) {
  const auto without = [](ScatterReduction reduction) {
    return scattered(reduction, false, {1, 5, 2}, {5, 5, 2, 0}, {1, 1, 2, 2});
  };
  using All = std::vector<Doubles>;
  EXPECT_EQ(without(ScatterReduction::sum), (All{{1, 10, 2}, {1, 0, 0}, {1, 1, 1, 1}}));
  EXPECT_EQ(without(ScatterReduction::prod), (All{{1, 25, 0}, {1, 0, 0}, {5, 5, 0, 2}}));
  EXPECT_EQ(without(ScatterReduction::mean), (All{{1, 5, 1}, {1, 0, 0}, {0.5, 0.5, 0.5, 0.5}}));
  // PyTorch counts x among the winners here and drops its share: 1/3 each.
  EXPECT_EQ(without(ScatterReduction::amax), (All{{1, 5, 2}, {1, 0, 0}, {0.5, 0.5, 1, 0}}));
  EXPECT_EQ(without(ScatterReduction::amin), (All{{1, 5, 0}, {1, 0, 0}, {0.5, 0.5, 0, 1}}));
}

TEST(ScatterReduce, PropagatesNanAndCountsZeros) {
  const double nan = std::nan("");
  const auto found = scattered(ScatterReduction::amax, true, {nan, 1, 1}, {1, nan, 1, 1}, {0, 1, 2, 2});
  EXPECT_TRUE(std::isnan(found[0][0]) && std::isnan(found[0][1]));
  EXPECT_EQ(found[1], (Doubles{1, 0, 1.0 / 3}));
  EXPECT_EQ(found[2], (Doubles{0, 1, 1.0 / 3, 1.0 / 3}));
  const auto zeros_in = scattered(ScatterReduction::prod, true, {0, 2, 3}, {0, 4, 0, 5}, {0, 0, 1, 1});
  EXPECT_EQ(zeros_in[0], (Doubles{0, 0, 3}));
  EXPECT_EQ(zeros_in[1], (Doubles{0, 0, 1}));
  EXPECT_EQ(zeros_in[2], (Doubles{0, 0, 10, 0}));
}

TEST(ScatterReduce, CombinesHalfTypesInF32) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Tensor nowhere = zeros({4096}, {.dtype = DType::i64}), ones_sent = ones({4096}, {.dtype = dtype});
    const Tensor one = ones({1}, {.dtype = dtype});
    EXPECT_EQ(scatter_reduce(one, 0, nowhere, ones_sent, ScatterReduction::mean).item(), 1.0) << to_string(dtype);
    const double factor = 1.0078125;  // 1 + 2^-7: the product of 32 factors is 1.2828, but each step in bf16 rounds
    const Tensor many = full({32}, factor, {.dtype = dtype});
    EXPECT_EQ(scatter_reduce(one, 0, slice(nowhere, 0, 0, 32), many, ScatterReduction::prod).item(),
              to(scalar(std::pow(factor, 32)), dtype).item())
        << to_string(dtype);
  }
}

TEST(ScatterReduce, NamesTheRejectedDtype) {
  const Tensor whole = ones({2}, {.dtype = DType::i64}), flags = ones({2}, {.dtype = DType::boolean}),
               at = places_of({0, 1});
  EXPECT_THAT(error_of<DTypeError>([&] { scatter_reduce(whole, 0, at, whole, ScatterReduction::mean); }),
              ::testing::HasSubstr("[scatter_reduce] a mean needs a floating dtype: x (2,) i64 on cpu"));
  EXPECT_THAT(error_of<DTypeError>([&] { scatter_reduce(flags, 0, at, flags, ScatterReduction::amax); }),
              ::testing::HasSubstr("[scatter_reduce] bool is not a numeric dtype"));
  EXPECT_THROW(scatter_reduce(ones({2}), 0, places_of({2}), ones({1}), ScatterReduction::sum), IndexError);
}

template <class Function>
Doubles slopes_at(const Function& function, std::initializer_list<double> at) {
  const Tensor x = f64_values(at).set_requires_grad();
  return grad({sum(function(x))}, {x})[0].template to_vector<double>();
}

TEST(KinkGradients, MatchPyTorch) {
  EXPECT_EQ(slopes_at([](const Tensor& x) { return elu(x, 1.5); }, {0.0, -0.0, 2.0, 1e300}), (Doubles{1.5, 1.5, 1, 1}));
  EXPECT_EQ(slopes_at(
                [](const Tensor& x) {
                  return atan2(x, f64_values({0, -1, 0, 1e200}));
                },
                {0, 0, 1, 1e200}),
            (Doubles{0, -1, 0, 0.5e-200}));
  EXPECT_EQ(slopes_at(
                [](const Tensor& x) {
                  return atan2(f64_values({0, 0, 1, -1}), x);
                },
                {0, -1, 0, 0}),
            (Doubles{0, 0, -1, 1}));
  EXPECT_EQ(slopes_at(
                [](const Tensor& y) {
                  return fmod(f64_values({5, -5, 5, -5, 4}), y);
                },
                {3, 3, -3, -3, 2}),
            (Doubles{-1, 1, 1, -1, -2}));
  EXPECT_EQ(slopes_at(
                [](const Tensor& y) {
                  return remainder(f64_values({5, -5, 5, -5, 4}), y);
                },
                {3, 3, -3, -3, 2}),
            (Doubles{-1, 2, 2, -1, -2}));
  EXPECT_EQ(slopes_at(mish, {0, 100, -1000, 1e30}), (Doubles{0.6, 1, 0, 1}));
  for (const bool create_graph : {false, true}) {
    const Tensor x = f64_values({800, -800}).set_requires_grad();
    const Tensor slope = grad({sum(elu(x) + mish(x))}, {x}, {}, {.create_graph = create_graph})[0];
    EXPECT_EQ(slope.to_vector<double>(), (Doubles{2, 0})) << create_graph;
  }
}

TEST(ClampByTensors, AcceptsUndefinedBoundsAndPrefersTheUpper) {
  const Tensor x = f64_values({0, 1, 2, 3}), low = f64_values({1}), high = f64_values({2, 2, 2, 0});
  EXPECT_EQ(clamp(x, low, high).to_vector<double>(), (Doubles{1, 1, 2, 0}));
  EXPECT_EQ(clamp(x, low, Tensor()).to_vector<double>(), (Doubles{1, 1, 2, 3}));
  EXPECT_EQ(clamp(x, Tensor(), high).to_vector<double>(), (Doubles{0, 1, 2, 0}));
  EXPECT_EQ(slopes_at([&](const Tensor& in) { return clamp(in, low, f64_values({3})); }, {0, 1, 2, 3, 4}),
            (Doubles{0, 0.5, 1, 0.5, 0}));
}

TEST(Unstacking, GluUnbindAndMovedimCheckTheirDimensions) {
  EXPECT_EQ(error_of<ShapeError>([] { glu(zeros({3})); }),
            "[glu] dimension 0 does not divide into two halves: x (3,) f32 on cpu");
  EXPECT_EQ(glu(zeros({4, 6}), 0).shape(), (Shape{2, 6}));
  const Tensor x = reshape(arange(0, 24), {2, 3, 4});
  EXPECT_EQ(unbind(x, 1).size(), 3u);
  EXPECT_TRUE(bit_equal(unbind(x, 1)[2], select(x, 1, 2)));
  EXPECT_TRUE(unbind(x)[0].shares_storage_with(x));
  EXPECT_TRUE(unbind(zeros({2, 0}), 1).empty());
  EXPECT_EQ(movedim(zeros({2, 3, 4, 5}), {0, 1}, {-1, 0}).shape(), (Shape{3, 4, 5, 2}));
  EXPECT_EQ(movedim(x, 0, 2).shape(), (Shape{3, 4, 2}));
  EXPECT_THROW(movedim(x, {0, 1}, 0), ShapeError);
  EXPECT_THROW(movedim(x, {0, 0}, {0, 1}), IndexError);
}

}  // namespace
}  // namespace poolgrad
