// Products on CUDA compared with the CPU's, which other tests compare with the definition in f64. Gaps between rows and
// memory around them must not change.
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "kernels/dispatch.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

/// A product (m, k) x (k, n) and the layout of its operands. Rows are `gap` elements longer than necessary and begin
/// `offset` elements into an allocation; the bias begins at `bias_offset`. Repeated operands have a batch stride of 0.
struct ProductCase {
  std::array<std::int64_t, 3> size;
  bool transpose_a = false, transpose_b = false;
  std::int64_t gap = 0, offset = 0, batch = 1;
  bool repeat_a = false, repeat_b = false;
  double alpha = 1, beta = 0;
  bool bias = false, f32_out = false;
  int repeats = 1;
  std::int64_t bias_offset = 0;
};

/// k products summed in another order, and one rounding to the dtype of C.
double slack_of_product(DType out, std::int64_t k) {
  return std::max(2 * tolerance(out), (out == DType::f64 ? 1e-15 : 1e-6) * (1.0 + static_cast<double>(k)));
}

void expect_product(DType dtype, const ProductCase& x, std::mt19937_64& random) {
  const std::int64_t m = x.size[0], n = x.size[1], k = x.size[2];
  SCOPED_TRACE(::testing::Message() << to_string(dtype) << " " << m << " x " << n << " x " << k << ", transposed "
                                    << x.transpose_a << x.transpose_b << ", gap " << x.gap << ", offset " << x.offset
                                    << ", batch " << x.batch << ", beta " << x.beta << ", bias " << x.bias << " at "
                                    << x.bias_offset << ", to f32 " << x.f32_out << "; seed " << test_seed());
  Gemm g{.m = m, .n = n, .k = k, .transpose_a = x.transpose_a, .transpose_b = x.transpose_b};
  g.batch = x.batch, g.alpha = x.alpha, g.beta = x.beta, g.dtype = dtype, g.f32_out = x.f32_out;
  const std::int64_t rows_a = x.transpose_a ? k : m, rows_b = x.transpose_b ? n : k;
  g.lda = std::max<std::int64_t>(1, x.transpose_a ? m : k) + x.gap;
  g.ldb = std::max<std::int64_t>(1, x.transpose_b ? k : n) + x.gap;
  g.ldc = std::max<std::int64_t>(1, n) + x.gap;
  if (x.batch > 1) {
    g.stride_a = x.repeat_a ? 0 : rows_a * g.lda;
    g.stride_b = x.repeat_b ? 0 : rows_b * g.ldb;
    g.stride_c = m * g.ldc;
  }
  TestArray a(dtype, {x.offset + (x.repeat_a ? 1 : x.batch) * rows_a * g.lda}),
      b(dtype, {x.offset + (x.repeat_b ? 1 : x.batch) * rows_b * g.ldb}),
      c(g.out_dtype(), {x.offset + x.batch * m * g.ldc}), bias(g.out_dtype(), {x.bias_offset + n});
  a.random(random);
  b.random(random);
  bias.random(random);
  if (x.beta != 0) c.random(random);
  const auto from = [](const View& view, std::int64_t offset) {
    return view.as<char>() + offset * static_cast<std::int64_t>(size_of(view.dtype));
  };
  expect_same(
      slack_of_product(c.dtype(), k), {&c}, {&a, &b, &bias},
      [&](Stream stream, const std::vector<View>& operands) {
        Gemm call = g;
        if (x.bias) call.bias = from(operands[3], x.bias_offset);
        gemm(stream, call, from(operands[1], x.offset), from(operands[2], x.offset), from(operands[0], x.offset));
      },
      x.repeats);
}

/// For every dtype, and for half types with a result in f32.
template <class Body>
void for_each_pair_of_types(const Body& body) {
  for (const DType dtype : floats) {
    body(dtype, false);
    if (size_of(dtype) == 2) body(dtype, true);
  }
}

TEST(CudaGemm, SupportsEveryTransposeAndLeadingDimension) {
  std::mt19937_64 random(test_seed());
  const std::vector<std::array<std::int64_t, 3>> sizes = {{1, 1, 1},   {7, 5, 3},    {33, 17, 65},
                                                          {64, 48, 8}, {1, 130, 40}, {129, 1, 33}};
  for (const std::array<std::int64_t, 3>& size : sizes)
    for (const std::int64_t gap : {0, 3})
      for (int layout = 0; layout < 4; ++layout)
        for_each_pair_of_types([&](DType dtype, bool to_f32) {
          expect_product(dtype,
                         {.size = size,
                          .transpose_a = (layout & 1) != 0,
                          .transpose_b = (layout & 2) != 0,
                          .gap = gap,
                          .f32_out = to_f32},
                         random);
        });
}

TEST(CudaGemm, AccumulatesManyTermsWithoutIntermediateRounding) {
  std::mt19937_64 random(test_seed());
  for (const std::int64_t k : {257, 600, 1025})
    for_each_pair_of_types([&](DType dtype, bool to_f32) {
      ProductCase shape{.size = {20, 31, k}, .gap = 1, .bias = true, .f32_out = to_f32, .repeats = 3};
      expect_product(dtype, shape, random);
      shape.batch = 3;
      expect_product(dtype, shape, random);
    });
}

TEST(CudaGemm, AccumulatesLongF32SumsInParts) {
  std::mt19937_64 random(test_seed());
  const std::array<std::int64_t, 3> sizes[] = {{20, 31, 1024}, {8, 140, 1040}, {33, 8, 2052}, {5, 3, 518}};
  for (const auto& size : sizes)
    for (const std::int64_t gap : {0, 4})
      for (int layout = 0; layout < 4; ++layout)
        expect_product(DType::f32,
                       {.size = size, .transpose_a = (layout & 1) != 0, .transpose_b = (layout & 2) != 0, .gap = gap},
                       random);
  expect_product(DType::f32, {.size = {20, 31, 1024}, .offset = 1, .repeats = 3}, random);
  expect_product(DType::f32, {.size = {20, 31, 1024}, .alpha = 2}, random);
}

TEST(CudaGemm, BroadcastsBatchOperandsOfStrideZero) {
  std::mt19937_64 random(test_seed());
  for (const bool transpose : {false, true})
    for (const auto& [repeat_a, repeat_b] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}})
      for_each_pair_of_types([&, a = repeat_a, b = repeat_b](DType dtype, bool to_f32) {
        const ProductCase shape{.size = {9, 13, 18},
                                .transpose_a = transpose,
                                .transpose_b = !transpose,
                                .gap = 2,
                                .batch = 7,
                                .repeat_a = a,
                                .repeat_b = b};
        expect_product(dtype, shape, random);
        ProductCase more = shape;
        more.beta = 1, more.bias = true, more.f32_out = to_f32;
        expect_product(dtype, more, random);
      });
}

TEST(CudaGemm, SupportsMoreMatricesThanGridBlocks) {
  std::mt19937_64 random(test_seed());
  expect_product(DType::f32, {.size = {1, 2, 1}, .batch = 65537, .repeat_b = true, .bias = true}, random);
}

TEST(CudaGemm, ScalesTheProductByAlphaAndCByBeta) {
  std::mt19937_64 random(test_seed());
  for (const double beta : {0.0, 1.0, -0.25})
    for (const bool bias : {false, true})
      for_each_pair_of_types([&](DType dtype, bool to_f32) {
        expect_product(dtype,
                       {.size = {19, 23, 30},
                        .transpose_b = true,
                        .gap = 1,
                        .alpha = -0.5,
                        .beta = beta,
                        .bias = bias,
                        .f32_out = to_f32},
                       random);
      });
}

TEST(CudaGemm, GivesBetaTimesCPlusBiasWithoutTerms) {
  std::mt19937_64 random(test_seed());
  for (const double beta : {0.0, 2.0})
    for (const bool bias : {false, true})
      for_each_pair_of_types([&](DType dtype, bool to_f32) {
        expect_product(dtype, {.size = {5, 40, 0}, .gap = 1, .batch = 2, .beta = beta, .bias = bias, .f32_out = to_f32},
                       random);
      });
  expect_product(DType::f32, {.size = {0, 5, 3}}, random);
  expect_product(DType::f32, {.size = {5, 0, 3}}, random);
}

TEST(CudaGemm, ComputesRowSumsWithTheProduct) {
  std::mt19937_64 random(test_seed());
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{24, 16, 40}, {16, 32, 600}, {7, 5, 30}, {40, 8, 0}, {8, 0, 9}})
    for (const bool transpose_a : {true, false})
      for (const bool accumulate : {false, true})
        for_each_pair_of_types([&](DType dtype, bool to_f32) {
          Gemm g{.m = m, .n = n, .k = k, .transpose_a = transpose_a, .dtype = dtype, .f32_out = to_f32};
          g.lda = std::max<std::int64_t>(1, transpose_a ? m : k), g.ldb = g.ldc = std::max<std::int64_t>(1, n);
          g.beta = accumulate;
          TestArray a(dtype, {k * m}), b(dtype, {k * n}), c(g.out_dtype(), {m * n}), sums(g.out_dtype(), {m});
          for (TestArray* x : {&a, &b, &c}) x->random(random);
          SCOPED_TRACE(::testing::Message() << to_string(dtype) << " " << m << " x " << n << " x " << k
                                            << ", transposed " << transpose_a << "; seed " << test_seed());
          expect_same(
              slack_of_product(c.dtype(), k), {&sums, &c}, {&a, &b},
              [&](Stream stream, const std::vector<View>& operands) {
                Gemm call = g;
                call.row_sums = operands[0].data;
                gemm(stream, call, operands[2].data, operands[3].data, operands[1].data);
              },
              2);
          for (std::int64_t i = 0; i < m; ++i) {
            double sum = 0;
            for (std::int64_t p = 0; p < k; ++p) sum += a[transpose_a ? p * m + i : i * k + p];
            EXPECT_NEAR(sums[i], sum, (1 + std::abs(sum)) * slack_of_product(c.dtype(), k)) << i;
          }
        });
}

TEST(CudaGemm, SupportsOperandsOfAnyAlignment) {
  std::mt19937_64 random(test_seed());
  const auto expect = [&](std::int64_t offset, std::int64_t bias_offset, double beta) {
    for_each_pair_of_types([&](DType dtype, bool to_f32) {
      ProductCase shape{.size = {16, 24, 32}, .offset = offset, .batch = 2, .beta = beta, .bias = true};
      shape.f32_out = to_f32, shape.bias_offset = bias_offset;
      expect_product(dtype, shape, random);
    });
  };
  for (const std::int64_t offset : {1, 2, 4}) {
    expect(offset, offset, 0);
    expect(0, offset, 0);
    expect(offset, 0, 0);
  }
  expect(4, 1, 0.5);
  expect(4, 2, 0.5);
}

TEST(CudaGemm, ComputesRowSumsAtAnyAlignment) {
  std::mt19937_64 random(test_seed());
  const std::int64_t m = 24, n = 16, k = 40;
  for (const std::int64_t offset : {0, 1, 4})
    for (const DType dtype : {DType::f16, DType::bf16}) {
      TestArray a(dtype, {k * m}), b(dtype, {k * n}), c(dtype, {m * n}), sums(dtype, {offset + m});
      for (TestArray* x : {&a, &b}) x->random(random);
      SCOPED_TRACE(::testing::Message() << to_string(dtype) << ", sums at " << offset << "; seed " << test_seed());
      expect_same(slack_of_product(dtype, k), {&sums, &c}, {&a, &b},
                  [&](Stream stream, const std::vector<View>& operands) {
                    Gemm call{.m = m, .n = n, .k = k, .transpose_a = true, .lda = m, .ldb = n, .ldc = n};
                    call.dtype = dtype;
                    call.row_sums = operands[0].as<std::uint16_t>() + offset;
                    gemm(stream, call, operands[2].data, operands[3].data, operands[1].data);
                  });
    }
}

}  // namespace
}  // namespace poolgrad::kernels
