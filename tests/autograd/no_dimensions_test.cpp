// A tensor without dimensions accepts dimensions 0 and -1, like a vector of one element, for the operators that allow
// it in PyTorch 2.15.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using CallAlong = std::function<Tensor(const Tensor& x, std::int64_t dim)>;

Tensor first_place(const Tensor& x) { return zeros(x.shape(), {.dtype = DType::i64}); }

const std::vector<std::pair<std::string, CallAlong>> calls_along = {
    {"sum", [](const Tensor& x, std::int64_t dim) { return sum(x, dim); }},
    {"sum, kept", [](const Tensor& x, std::int64_t dim) { return sum(x, dim, true); }},
    {"mean", [](const Tensor& x, std::int64_t dim) { return mean(x, dim); }},
    {"var", [](const Tensor& x, std::int64_t dim) { return var(x, dim, false, 0.0); }},
    {"prod", [](const Tensor& x, std::int64_t dim) { return prod(x, dim); }},
    {"max", [](const Tensor& x, std::int64_t dim) { return max(x, dim); }},
    {"min", [](const Tensor& x, std::int64_t dim) { return min(x, dim); }},
    {"norm", [](const Tensor& x, std::int64_t dim) { return norm(x, 2.0, dim); }},
    {"logsumexp", [](const Tensor& x, std::int64_t dim) { return logsumexp(x, dim); }},
    {"cumsum", [](const Tensor& x, std::int64_t dim) { return cumsum(x, dim); }},
    {"cumprod", [](const Tensor& x, std::int64_t dim) { return cumprod(x, dim); }},
    {"logcumsumexp", [](const Tensor& x, std::int64_t dim) { return logcumsumexp(x, dim); }},
    {"softmax", [](const Tensor& x, std::int64_t dim) { return softmax(x, dim); }},
    {"log_softmax", [](const Tensor& x, std::int64_t dim) { return log_softmax(x, dim); }},
    {"sort", [](const Tensor& x, std::int64_t dim) { return sort(x, dim).values; }},
    {"topk", [](const Tensor& x, std::int64_t dim) { return topk(x, 1, dim).values; }},
    {"flip", [](const Tensor& x, std::int64_t dim) { return flip(x, dim); }},
    {"transpose", [](const Tensor& x, std::int64_t dim) { return transpose(x, dim, 0); }},
    {"movedim", [](const Tensor& x, std::int64_t dim) { return movedim(x, dim, -1); }},
    {"index_select", [](const Tensor& x, std::int64_t dim) { return index_select(x, dim, first_place(x)); }},
    {"index_add", [](const Tensor& x, std::int64_t dim) { return index_add(x, dim, first_place(x), x); }},
    {"gather", [](const Tensor& x, std::int64_t dim) { return gather(x, dim, first_place(x)); }},
    {"scatter", [](const Tensor& x, std::int64_t dim) { return scatter(x, dim, first_place(x), x * 2.0); }},
    {"scatter_add", [](const Tensor& x, std::int64_t dim) { return scatter_add(x, dim, first_place(x), x); }},
    {"scatter_reduce",
     [](const Tensor& x, std::int64_t dim) {
       return scatter_reduce(x, dim, first_place(x), x * 2.0, ScatterReduction::prod);
     }},
};

TEST(ZeroDimensional, TensorActsAsAVectorOfOneAlongDimensionsZeroAndMinusOne) {
  for (const auto& [name, call] : calls_along)
    for (const std::int64_t dim : {0, -1}) {
      const Tensor x = scalar(1.5, {.dtype = DType::f64}).set_requires_grad();
      const Tensor vector = full({1}, 1.5, {.dtype = DType::f64}).set_requires_grad();
      const Tensor found = call(x, dim), expected = call(vector, dim);
      EXPECT_EQ(found.shape(), Shape{}) << name;
      EXPECT_EQ(found.item(), expected.item()) << name;
      const Tensor slope = grad({found}, {x})[0];
      EXPECT_EQ(slope.shape(), Shape{}) << name;
      EXPECT_EQ(slope.item(), grad({sum(expected)}, {vector})[0].item()) << name;
    }
}

TEST(ZeroDimensional, TensorRejectsOtherDimensions) {
  const Tensor x = scalar(1.5, {.dtype = DType::f64});
  for (const auto& [name, call] : calls_along) {
    EXPECT_THROW(call(x, 1), IndexError) << name;
    EXPECT_THROW(call(x, -2), IndexError) << name;
  }
}

TEST(ZeroDimensional, TensorGivesZeroDimensionalIndicesAndTruth) {
  const Tensor x = scalar(1.5);
  for (const Tensor& result : {argmax(x, 0), argmax(x, -1, true), argmin(x), argsort(x), sort(x, 0).indices,
                               topk(x, 1).indices, any(x, 0), all(x, -1), squeeze(x, 0), unsqueeze(x, 0)[0]})
    EXPECT_EQ(result.shape(), Shape{});
  EXPECT_EQ(argmax(x, 0).item(), 0.0);
}

TEST(ZeroDimensional, TensorAcceptsAnIndexVectorOfOne) {
  const Tensor x = scalar(1.5, {.dtype = DType::f64}).set_requires_grad();
  const Tensor index = zeros({1}, {.dtype = DType::i64}), source = full({1}, 2.0, {.dtype = DType::f64});
  const struct {
    const char* name;
    Tensor found;
    Shape shape;
    double value, slope;
  } cases[] = {{"gather", gather(x, 0, index), {1}, 1.5, 1.0},
               {"index_select", index_select(x, -1, index), {}, 1.5, 1.0},
               {"index_add", index_add(x, 0, index, scalar(2.0, {.dtype = DType::f64})), {}, 3.5, 1.0},
               {"scatter", scatter(x, 0, index, source), {}, 2.0, 0.0},
               {"scatter_add", scatter_add(x, 0, index, source), {}, 3.5, 1.0},
               {"unfold", unfold(x, 0, 1), {1}, 1.5, 1.0}};
  for (const auto& [name, found, shape, value, slope] : cases) {
    EXPECT_EQ(found.shape(), shape) << name;
    EXPECT_EQ(found.item(), value) << name;
    EXPECT_EQ(grad({sum(found)}, {x})[0].item(), slope) << name;
  }
  EXPECT_THROW(index_select(x, 0, zeros({2}, {.dtype = DType::i64})), ShapeError);
}

TEST(ZeroDimensional, TensorCannotBeSlicedOrSplit) {
  const Tensor x = scalar(1.5);
  EXPECT_THROW(slice(x, 0, 0, 1), IndexError);
  EXPECT_THROW(select(x, 0, 0), IndexError);
  EXPECT_THROW(unbind(x), IndexError);
  EXPECT_THROW(chunk(x, 1), IndexError);
  EXPECT_THROW(roll(x, 1, 0), IndexError);
  EXPECT_THROW(glu(x), ShapeError);
  EXPECT_THROW(x.size(0), IndexError);
}

}  // namespace
}  // namespace poolgrad
