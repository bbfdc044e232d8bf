// Gradients of half types are summed in f32, over several passes and over several uses in one graph.
#include "autograd/engine/gradient_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "allocator/caching_allocator.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/profile.h"
#include "tensor/compare.h"
#include "tensor/creation.h"

namespace poolgrad {
namespace {

using ::testing::Each;

constexpr DType halves[] = {DType::f16, DType::bf16};

Tensor half_leaf(DType dtype, const Shape& shape = {3}) { return ones(shape, {.dtype = dtype}).set_requires_grad(); }
std::vector<double> numbers(const Tensor& x) { return to(x.detach(), DType::f64).to_vector<double>(); }

TEST(GradientSum, RoundsOnceAfterManyPasses) {
  for (const DType dtype : halves) {
    Tensor w = half_leaf(dtype), exact = half_leaf(DType::f32);
    for (int i = 0; i < 5000; ++i) {
      const Tensor factor = full({3}, i % 7 == 0 ? -0.25 : 1.0, {.dtype = dtype});
      sum(w * factor).backward();
      sum(exact * to(factor, DType::f32)).backward();
    }
    EXPECT_EQ(w.grad().dtype(), dtype);
    EXPECT_TRUE(bit_equal(w.grad(), to(exact.grad(), dtype))) << to_string(dtype);
    EXPECT_GT(numbers(w.grad())[0], 4000);
  }
}

TEST(GradientSum, RoundsOnceAfterManyUsesInOneGraph) {
  for (const DType dtype : halves)
    for (const bool through_another : {false, true}) {
      Tensor w = half_leaf(dtype);
      const Tensor x = through_another ? w * 1.0 : w;
      std::vector<Tensor> uses;
      for (int i = 0; i < 3000; ++i) uses.push_back(x * 1.0);
      backward(uses, std::vector<Tensor>(uses.size(), ones({3}, {.dtype = dtype})));
      EXPECT_THAT(numbers(w.grad()), Each(numbers(full({1}, 3000, {.dtype = dtype}))[0])) << to_string(dtype);
      EXPECT_THAT(numbers(grad({stack({x * 1.0, x * 2.0, x * 0.5}, 0)}, {x}, {ones({3, 3}, {.dtype = dtype})})[0]),
                  Each(3.5));
    }
}

TEST(GradientSum, CountsARepeatedOutputEachTime) {
  for (const DType dtype : halves) {
    Tensor w = half_leaf(dtype);
    const Tensor y = w * 1.0;
    backward(std::vector<Tensor>(3000, y), std::vector<Tensor>(3000, ones({3}, {.dtype = dtype})));
    EXPECT_THAT(numbers(w.grad()), Each(numbers(full({1}, 3000, {.dtype = dtype}))[0]));
  }
}

/// One operator whose backward adds 3000 ones into an element.
TEST(GradientSum, IsExactInsideAnOperator) {
  using Of = std::function<Tensor(const Tensor&)>;
  const Tensor zero = zeros({3000}, {.dtype = DType::i64});
  const std::vector<std::pair<const char*, Of>> operators{
      {"embedding",
       [&](const Tensor& w) {
         return embedding(reshape(w, {1, 3}), zero);
       }},
      {"index_select",
       [&](const Tensor& w) {
         return index_select(reshape(w, {1, 3}), 0, zero);
       }},
      {"gather",
       [&](const Tensor& w) {
         return gather(reshape(w, {1, 3}), 0, expand(reshape(zero, {3000, 1}), {3000, 3}));
       }},
      {"expand",
       [&](const Tensor& w) {
         return expand(w, {3000, 3});
       }},
      {"tile", [&](const Tensor& w) { return tile(w, {3000}); }},
      {"add",
       [&](const Tensor& w) {
         return w + zeros({3000, 3}, {.dtype = w.dtype()});
       }},
      {"matmul",
       [&](const Tensor& w) {
         return matmul(ones({3000, 1}, {.dtype = w.dtype()}), reshape(w, {1, 3}));
       }},
      {"cumsum", [&](const Tensor& w) {
         return cumsum(cat({reshape(w, {1, 3}), zeros({2999, 3}, {.dtype = w.dtype()})}, 0), 0);
       }}};
  for (const DType dtype : halves)
    for (const auto& [name, of] : operators) {
      Tensor w = half_leaf(dtype);
      const Tensor y = of(w);
      y.backward(ones_like(y));
      EXPECT_THAT(numbers(w.grad()), Each(numbers(full({1}, 3000, {.dtype = dtype}))[0])) << name << to_string(dtype);
    }
}

TEST(GradientSum, ContinuesFromAWrittenGradient) {
  for (const DType dtype : halves) {
    Tensor w = half_leaf(dtype);
    const auto add = [&](int times) {
      for (int i = 0; i < times; ++i) sum(w * 1.0).backward();
    };
    add(2500);
    const Tensor seen = w.grad();
    Tensor(seen).fill(0);
    add(2500);
    EXPECT_TRUE(seen.is_same(w.grad())) << "sums are made in place";
    EXPECT_THAT(numbers(seen), Each(numbers(full({1}, 2500, {.dtype = dtype}))[0]));
    w.set_grad(full({3}, 7, {.dtype = dtype}));
    add(2);
    EXPECT_THAT(numbers(w.grad()), Each(9));
    w.set_grad({});
    add(1);
    EXPECT_THAT(numbers(w.grad()), Each(1));
  }
}

TEST(GradientSum, SupportsViewsAndEmptyTensors) {
  for (const DType dtype : halves) {
    Tensor w = half_leaf(dtype, {2, 3}), empty = half_leaf(dtype, {0, 3});
    for (int i = 0; i < 600; ++i) {
      transpose(w, 0, 1).backward(transpose(ones({2, 3}, {.dtype = dtype}), 0, 1));
      sum(empty * 1.0).backward();
    }
    EXPECT_THAT(numbers(w.grad()), Each(600));
    EXPECT_EQ(empty.grad().shape(), (Shape{0, 3}));
  }
}

TEST(GradientSum, IsDifferentiableWithCreateGraph) {
  for (const DType dtype : halves) {
    Tensor x = full({2}, 3, {.dtype = dtype}).set_requires_grad();
    std::vector<Tensor> uses;
    for (int i = 0; i < 3; ++i) uses.push_back(square(x));
    backward(uses, std::vector<Tensor>(3, ones({2}, {.dtype = dtype})), {.create_graph = true});
    sum(square(x)).backward({}, true, true);  // adds to the gradient of the first pass
    EXPECT_THAT(numbers(x.grad()), Each(24));
    EXPECT_EQ(x.grad().dtype(), dtype);
    EXPECT_THAT(numbers(grad({sum(x.grad())}, {x}, {}, {.retain_graph = true})[0]), Each(8));
    const Tensor before = x.grad();
    sum(x * 1.0).backward();
    EXPECT_THAT(numbers(before), Each(24)) << "what a graph leads to is not written";
    EXPECT_THAT(numbers(x.grad()), Each(25));
  }
}

TEST(GradientSum, ShowsHooksOneGradientInTheDtypeOfTheTensor) {
  for (const DType dtype : halves) {
    Tensor w = half_leaf(dtype);
    std::vector<double> seen;
    register_hook(w, [&](const Tensor& gradient) {
      EXPECT_EQ(gradient.dtype(), dtype);
      seen.push_back(numbers(gradient)[0]);
      return Tensor();
    });
    register_post_accumulate_hook(w, [&](const Tensor& gradient) { seen.push_back(numbers(gradient)[0]); });
    for (int i = 0; i < 2; ++i)
      backward(std::vector<Tensor>(600, w * 1.0), std::vector<Tensor>(600, ones({3}, {.dtype = dtype})));
    EXPECT_EQ(seen, (std::vector<double>{600, 600, 600, 1200}));
  }
}

TEST(GradientSum, TakesExtraMemoryForHalfTypesOnly) {
  const auto gradient_bytes = [](DType dtype) {
    const auto now = [] {
      return allocator_for(cpu).statistics().category_bytes[static_cast<std::size_t>(Category::gradient)].current;
    };
    Tensor w = half_leaf(dtype, {4096});
    const auto before = now();
    std::vector<std::size_t> found;
    for (int i = 0; i < 3; ++i) {
      sum(w * 1.0).backward();
      found.push_back(now() - before);
    }
    return found;
  };
  EXPECT_EQ(gradient_bytes(DType::f64), (std::vector<std::size_t>(3, 8 * 4096)));
  EXPECT_EQ(gradient_bytes(DType::f32), (std::vector<std::size_t>(3, 4 * 4096)));
  for (const DType dtype : halves)
    EXPECT_EQ(gradient_bytes(dtype), (std::vector<std::size_t>{2 * 4096, 6 * 4096, 6 * 4096}));
}

/// Bytes that kernels read and write in the backward of a loop that takes `steps` slices of x, one position each.
double backward_bytes(std::int64_t steps, bool by_select, DType dtype) {
  Tensor x = ones({2, steps, 8}, {.dtype = dtype}).set_requires_grad();
  Tensor state = zeros({2, 8}, {.dtype = dtype});
  for (std::int64_t t = 0; t < steps; ++t)
    state = state * 0.5 + (by_select ? select(x, 1, t) : squeeze(slice(x, 1, t, t + 1), 1));
  const kernels::KernelProfile profile;
  sum(state).backward();
  double bytes = 0;
  for (const kernels::KernelCall& call : profile.calls()) bytes += call.bytes;
  return bytes;
}

TEST(GradientSum, IsLinearInTheTensorForSlicesInALoop) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool by_select : {true, false}) {
      const double once = backward_bytes(100, by_select, dtype);
      EXPECT_LT(backward_bytes(400, by_select, dtype), 4.1 * once) << to_string(dtype) << " by select " << by_select;
    }
}

TEST(GradientSum, EqualsTheGatherGradientForOverlappingSlices) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t uses : {2, 3, 600}) {
      Tensor x = ones({2, 6, 3}, {.dtype = dtype}).set_requires_grad();
      Tensor gathered = ones({2, 6, 3}, {.dtype = dtype}).set_requires_grad();
      std::vector<Tensor> slices, picks, weights;
      for (std::int64_t i = 0; i < uses; ++i) {
        const std::int64_t first = i % 3;
        slices.push_back(slice(x, 1, first, first + 4, 2));
        picks.push_back(index_select(gathered, 1, from_data(std::vector<std::int64_t>{first, first + 2}, {2})));
        weights.push_back(full({2, 2, 3}, 1.0 + 0.125 * static_cast<double>(i % 5), {.dtype = dtype}));
      }
      backward(slices, weights);
      backward(picks, weights);
      EXPECT_TRUE(bit_equal(x.grad(), gathered.grad())) << to_string(dtype) << " uses " << uses;
    }
}

TEST(GradientSum, LeavesASharedGradientAlone) {
  Tensor x = ones({4}).set_requires_grad();
  Tensor kept;
  const Tensor y = x * 1.0;
  const Tensor both = add(y, zeros({4}));
  register_hook(both, [&kept](const Tensor& gradient) {
    kept = gradient;
    return Tensor();
  });
  const Tensor part = slice(y, 0, 1, 3);
  (sum(part * 3.0) + sum(both * 2.0)).backward();
  EXPECT_EQ(kept.to_vector<double>(), (std::vector<double>{2, 2, 2, 2}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 5, 5, 2}));
}

}  // namespace
}  // namespace poolgrad
