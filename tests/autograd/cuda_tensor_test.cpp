// Tensors on cuda:0, the emulated device: made, filled, viewed, moved, computed with, differentiated, and given back to
// the pool as on the CPU.
#include <gtest/gtest.h>

#include <functional>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/test_seed.h"

namespace poolgrad {
namespace {

constexpr Device gpu{DeviceType::cuda, 0};
constexpr DType every_dtype[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                 DType::i64, DType::i32, DType::u8,  DType::boolean};

Tensor moved(const Tensor& x, Device device) {
  Tensor out = Tensor::empty(x.shape(), {x.dtype(), device});
  out.copy_from(x.detach());
  return out;
}

TEST(CudaTensor, IsMadeFilledAndReadAsOnTheCpu) {
  for (const DType dtype : every_dtype)
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{7}, Shape{3, 1025}}) {
      EXPECT_TRUE(bit_equal(full(shape, 3, {dtype, gpu}), full(shape, 3, {dtype})));
      EXPECT_EQ(zeros(shape, {dtype, gpu}).to_vector<double>(), zeros(shape, {dtype}).to_vector<double>());
    }
  EXPECT_EQ(scalar(2.5, {DType::f32, gpu}).item(), 2.5);
  EXPECT_TRUE(bit_equal(arange(0, 9, 0.25, {DType::f32, gpu}), arange(0, 9, 0.25)));
}

TEST(CudaTensor, ViewsAreCopiedInAnyLayout) {
  const Tensor x = arange(0, 60, 1).alias({{3, 4, 5}, {20, 5, 1}, 0});
  const Tensor there = moved(x, gpu);
  const auto turned = [](const Tensor& tensor) { return tensor.alias({{5, 4}, {1, 5}, 20}); };
  EXPECT_TRUE(bit_equal(turned(there).copy(), turned(x)));
  EXPECT_TRUE(bit_equal(turned(there), turned(x)));  // reads from the device what is not row-major there
  Tensor into = zeros({4, 5}, {DType::f32, gpu});
  into.alias({{5, 4}, {1, 5}, 0}).copy_from(turned(x));
  EXPECT_TRUE(bit_equal(into, x.alias({{4, 5}, {5, 1}, 20})));
}

/// Elementwise forward and backward, with no reduction but by views: the tensor and the gradients.
std::vector<Tensor> expression(const Tensor& x, const Tensor& y) {
  Tensor a = x.detach(), b = y.detach();
  a.set_requires_grad();
  b.set_requires_grad();
  const Tensor chosen = where(less(a, b), a * b, relu(a - b) / (abs(b) + 1.0));
  const Tensor result = maximum(chosen, -a) * a;
  result.backward(ones_like(result));
  return {result.detach(), a.grad(), b.grad()};
}

TEST(CudaTensor, AnExpressionAndItsGradientsHaveTheBitsOfTheCpu) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor x = randn({37, 41}, {dtype}, generator), y = randn({37, 41}, {dtype}, generator);
    const std::vector<Tensor> expected = expression(x, y), found = expression(moved(x, gpu), moved(y, gpu));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      EXPECT_EQ(found[k].device(), gpu);
      EXPECT_TRUE(bit_equal(found[k], expected[k])) << to_string(dtype) << ", tensor " << k << "; seed " << test_seed();
    }
  }
}

TEST(CudaTensor, ThePoolSeesTheRequestsThatItSeesOnTheCpu) {
  Generator generator(test_seed());
  const Tensor x = randn({37, 41}, {}, generator), y = randn({37, 41}, {}, generator);
  const Tensor x_there = moved(x, gpu), y_there = moved(y, gpu);
  const auto hash_of = [](const Tensor& a, const Tensor& b) {
    CachingAllocator& pool = allocator_for(a.device());
    pool.reset_sequence_hash();
    expression(a, b);
    return pool.sequence_hash();
  };
  EXPECT_EQ(hash_of(x_there, y_there), hash_of(x, y));
}

TEST(CudaTensor, MemoryIsGivenBack) {
  CachingAllocator& pool = allocator_for(gpu);
  const std::size_t before = pool.statistics().allocated_bytes.current;
  {
    const Tensor x = full({1000, 100}, 1.0, {DType::f32, gpu});
    EXPECT_GE(pool.statistics().allocated_bytes.current - before, 400000u);
    EXPECT_EQ((x + x).to_vector<float>(), std::vector<float>(100000, 2.0f));
  }
  EXPECT_EQ(pool.statistics().allocated_bytes.current, before);
}

TEST(CudaTensor, WhatCannotBeDoneIsOneSentenceAndTheNextCallWorks) {
  const Tensor x = ones({4}, {DType::f32, gpu});
  const auto error_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([&] { x.data<float>(); }), "[data] memory outside the CPU cannot be read: (4,) f32 on cuda:0");
  EXPECT_NE(error_of([&] { x + ones({4}); }).find("(4,) f32 on cuda:0"), std::string::npos);
  EXPECT_EQ(error_of([&] { cumsum(x, 0); }), "[cumulative_sum] has no kernel for cuda:0 in this build");
  EXPECT_NE(error_of([&] { zeros({std::int64_t{1} << 40}, {DType::f32, gpu}); }).find("cuda:0"), std::string::npos);
  EXPECT_EQ(error_of([&] {
              zeros({4}, {DType::f32, Device{DeviceType::cuda, 9}});
            }),
            "[allocator] cuda:9 cannot be used: there are 1 CUDA devices; use cpu or sim:N");
  EXPECT_TRUE(bit_equal(x + x, full({4}, 2.0)));
}

}  // namespace
}  // namespace poolgrad
