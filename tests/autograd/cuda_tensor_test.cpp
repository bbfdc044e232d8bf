// Tensors on cuda:0, the emulated device: creation, fills, views, copies, arithmetic, gradients and release to the
// pool, as on the CPU.
#include <gmock/gmock.h>
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
      EXPECT_TRUE(bit_equal(full(shape, 1, {dtype, gpu}), full(shape, 1, {dtype})));
      EXPECT_EQ(zeros(shape, {dtype, gpu}).to_vector<double>(), zeros(shape, {dtype}).to_vector<double>());
    }
  EXPECT_EQ(scalar(2.5, {DType::f32, gpu}).item(), 2.5);
  EXPECT_TRUE(bit_equal(arange(0, 9, 0.25, {DType::f32, gpu}), arange(0, 9, 0.25)));
}

TEST(CudaTensor, LinspaceAndEyeHaveTheBitsOfTheCpu) {
  for (const DType dtype : every_dtype) {
    for (const std::int64_t elements : {0, 1, 4, 1000})
      EXPECT_TRUE(bit_equal(linspace(0, 99.9, elements, {dtype, gpu}), linspace(0, 99.9, elements, {dtype})))
          << elements << " of " << to_string(dtype);
    for (const std::int64_t offset : {-40, 0, 1, 99})
      EXPECT_TRUE(bit_equal(eye(41, 37, offset, {dtype, gpu}), eye(41, 37, offset, {dtype})))
          << "diagonal " << offset << " of " << to_string(dtype);
  }
}

TEST(CudaTensor, ViewsAreCopiedInAnyLayout) {
  const Tensor x = arange(0, 60, 1).alias({{3, 4, 5}, {20, 5, 1}, 0});
  const Tensor there = moved(x, gpu);
  const auto turned = [](const Tensor& tensor) { return tensor.alias({{5, 4}, {1, 5}, 20}); };
  EXPECT_TRUE(bit_equal(turned(there).copy(), turned(x)));
  EXPECT_TRUE(bit_equal(turned(there), turned(x)));  // copies a view that is not row-major from the device
  Tensor into = zeros({4, 5}, {DType::f32, gpu});
  into.alias({{5, 4}, {1, 5}, 0}).copy_from(turned(x));
  EXPECT_TRUE(bit_equal(into, x.alias({{4, 5}, {5, 1}, 20})));
}

/// Elementwise operators forward and backward, without reductions: the result and the gradients.
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

TEST(CudaTensor, MakesTheSamePoolRequestsAsOnTheCpu) {
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

TEST(CudaTensor, ReportsErrorsInOneSentenceAndRecovers) {
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
  EXPECT_EQ(error_of([&] {
              matmul(x, ones({3}, {DType::f32, gpu}));
            }),
            "[matmul] inner dimensions differ: lhs (4,) f32 on cuda:0, rhs (3,) f32 on cuda:0");
  EXPECT_NE(error_of([&] { zeros({std::int64_t{1} << 40}, {DType::f32, gpu}); }).find("cuda:0"), std::string::npos);
  EXPECT_THAT(error_of([&] {
                zeros({4}, {DType::f32, Device{DeviceType::cuda, 255}});
              }),
              ::testing::ContainsRegex("^\\[allocator\\] cuda:255 cannot be used: the (only|last) CUDA device is "
                                       "cuda:[0-9]+; use cpu or sim:N$"));
  EXPECT_TRUE(bit_equal(x + x, full({4}, 2.0)));
}

// Lookups, scatters, masks and dropout: values and gradients have the CPU's bits.

Tensor there_of(const Tensor& x) { return moved(x, gpu); }
Tensor leaf(const Tensor& x) {
  Tensor own = x.detach();
  own.set_requires_grad();
  return own;
}
Tensor indices(const Shape& shape, std::int64_t below, Generator& generator) {
  return randint(0, below, shape, {DType::i64}, generator);
}

/// run(leaves, index) returns a tensor, which serves as its own gradient. Both devices give the same tensor and
/// gradients.
template <class Run>
void expect_same_gradients(const std::vector<Tensor>& leaves, const Tensor& index, const Run& run) {
  const auto found = [&](const std::vector<Tensor>& given, const Tensor& at) {
    std::vector<Tensor> own;
    for (const Tensor& x : given) own.push_back(leaf(x));
    const Tensor out = run(own, at);
    out.backward(out.detach());
    std::vector<Tensor> result{out.detach()};
    for (const Tensor& x : own) result.push_back(x.grad());
    return result;
  };
  std::vector<Tensor> there;
  for (const Tensor& x : leaves) there.push_back(there_of(x));
  const std::vector<Tensor> expected = found(leaves, index), actual = found(there, there_of(index));
  for (std::size_t k = 0; k < expected.size(); ++k) {
    EXPECT_EQ(actual[k].device(), gpu);
    EXPECT_TRUE(bit_equal(actual[k], expected[k])) << "tensor " << k << "; seed " << test_seed();
  }
}

TEST(CudaLookup, EmbeddingAndItsGradient) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tensor table = randn({19, 24}, {dtype}, generator);
    expect_same_gradients({table}, indices({5, 31}, 19, generator),
                          [](const auto& x, const Tensor& at) { return embedding(x[0], at, 3); });
    expect_same_gradients({transpose(table, 0, 1)}, indices({40}, 24, generator),
                          [](const auto& x, const Tensor& at) { return embedding(x[0], at); });
  }
}

TEST(CudaLookup, GatherScatterAndTheirGradients) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = randn({7, 11}, {dtype}, generator), source = randn({7, 23}, {dtype}, generator);
    const Tensor at = indices({7, 23}, 11, generator), line = indices({23}, 11, generator);
    expect_same_gradients({x}, at, [](const auto& in, const Tensor& i) { return gather(in[0], 1, i); });
    expect_same_gradients({x}, line, [](const auto& in, const Tensor& i) { return index_select(in[0], 1, i); });
    expect_same_gradients({x, source}, at,
                          [](const auto& in, const Tensor& i) { return scatter_add(in[0], 1, i, in[1]); });
    expect_same_gradients({x, source}, line,
                          [](const auto& in, const Tensor& i) { return index_add(in[0], 1, i, in[1]); });
    const Tensor places = indices({7, 1}, 11, generator), one = randn({7, 1}, {dtype}, generator);
    expect_same_gradients({x, one}, places,
                          [](const auto& in, const Tensor& i) { return scatter(in[0], 1, i, in[1]); });
  }
}

TEST(CudaLookup, TensorsAsIndicesAndTheirGradients) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = randn({7, 11}, {dtype}, generator), source = randn({23, 11}, {dtype}, generator);
    const Tensor at = indices({23}, 14, generator) - 7.0, chosen = indices({7}, 2, generator);
    expect_same_gradients({x}, at, [](const auto& in, const Tensor& i) { return in[0][i]; });
    expect_same_gradients({x}, chosen, [](const auto& in, const Tensor& i) { return in[0][i == 1.0]; });
    for (const bool accumulate : {false, true})
      expect_same_gradients({x, source}, at,
                            [=](const auto& in, const Tensor& i) { return index_put(in[0], {i}, in[1], accumulate); });
    const Tensor places = indices({7, 40}, 11, generator), sent = randn({7, 40}, {dtype}, generator);
    for (const auto reduction : {ScatterReduction::sum, ScatterReduction::amax, ScatterReduction::prod})
      for (const bool include_self : {true, false})
        expect_same_gradients({x, sent}, places, [=](const auto& in, const Tensor& i) {
          return scatter_reduce(in[0], 1, i, in[1], reduction, include_self);
        });
  }
}

TEST(CudaLookup, MaskedFillAndDropout) {
  Generator generator(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const Tensor x = randn({13, 29}, {dtype}, generator);
    expect_same_gradients({x}, indices({13, 29}, 3, generator), [](const auto& in, const Tensor& i) {
      return masked_fill(in[0], equal(i, zeros({}, i.options())), -7.0);
    });
    expect_same_gradients({x}, indices({1}, 3, generator), [](const auto& in, const Tensor&) {
      Generator own(5, 6);
      return dropout(dropout(in[0], 0.3, own), 0.5, own);
    });
  }
}

TEST(CudaLookup, RandomTensorsMatchTheCpu) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    Generator here(7), there(7);
    EXPECT_TRUE(bit_equal(randn({3, 1001}, {dtype, gpu}, there), randn({3, 1001}, {dtype}, here)));
    EXPECT_TRUE(bit_equal(rand({3, 1001}, -1, 2, {dtype, gpu}, there), rand({3, 1001}, -1, 2, {dtype}, here)));
    EXPECT_TRUE(bit_equal(randint(-5, 9, {77}, {DType::i64, gpu}, there), randint(-5, 9, {77}, {DType::i64}, here)));
  }
}

TEST(CudaLookup, AnIndexOutOfRangeGivesTheCpuErrorAtTheNextWait) {
  const Tensor table = ones({4, 3}), at = from_data<std::int64_t>({0, 1, 2, 9}, {2, 2});
  const Tensor table_there = there_of(table), at_there = there_of(at);
  const auto error_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const IndexError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string expected = error_of([&] { embedding(table, at); });
  EXPECT_EQ(expected, "[embedding] index 9 at position (1, 1) is outside [0, 4)");
  Tensor out;
  EXPECT_EQ(error_of([&] { out = embedding(table_there, at_there); }), "no error");
  EXPECT_EQ(error_of([&] { out.to_vector<float>(); }), expected);
  const Tensor good = there_of(from_data<std::int64_t>({3, 1}, {2}));
  EXPECT_TRUE(bit_equal(embedding(table_there, good), ones({2, 3})));
}

}  // namespace
}  // namespace poolgrad
