// The row kernels on the emulated device, compared with the CPU's, which other tests compare with the definition in
// f64. Results agree within the tolerance of the dtype: sums have another order, and CUDA has its own exp and log.
#include "kernels/rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "allocator/caching_allocator.h"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/elementwise.h"
#include "tests/kernels/cuda/twin.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;
using Views = std::vector<View>;

// Empty rows; less than a pack; part of a warp's packs, all of them; a block's packs; more than a block keeps in
// registers; many short rows.
const std::vector<Shape> row_shapes = {{1},      {7},       {0, 5},    {3, 0},    {1, 1},     {33, 31}, {31, 32},
                                       {5, 513}, {3, 1024}, {2, 4099}, {2, 9000}, {1, 20480}, {300, 5}, {2, 3, 4, 257}};

Shape rows_of(Shape shape) {
  shape.pop_back();
  return shape;
}
DType wide_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Each elementary function errs by a few units, and results are rounded once more.
double slack_of_rows(DType dtype) { return 4 * tolerance(dtype); }

TEST(CudaSoftmax, AgreesWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : row_shapes) {
      TestArray x(dtype, shape), out(dtype, shape), log_out(dtype, shape), lse(dtype, rows_of(shape)),
          wide_lse(wide_dtype(dtype), rows_of(shape));
      x.random(random, -9, 9);
      expect_same(slack_of_rows(dtype), {&out, &log_out, &lse}, {&x}, [](Stream stream, const Views& operands) {
        softmax(stream, operands[0], operands[3]);
        log_softmax(stream, operands[1], operands[3]);
        logsumexp(stream, operands[2], operands[3]);
      });
      expect_same(slack_of_rows(compute_dtype(dtype)), {&wide_lse}, {&x},
                  [](Stream stream, const Views& operands) { logsumexp(stream, operands[0], operands[1]); });
    }
}

TEST(CudaSoftmax, GradientsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : row_shapes) {
      TestArray x(dtype, shape), out(dtype, shape), grad(dtype, shape), dx(dtype, shape), log_dx(dtype, shape);
      x.random(random);
      grad.random(random, 0.5, 2);
      softmax({}, out, x);
      expect_same(slack_of_rows(dtype), {&dx}, {&grad, &out}, [](Stream stream, const Views& operands) {
        softmax_backward(stream, operands[0], operands[1], operands[2]);
      });
      log_softmax({}, out, x);
      expect_same(10 * slack_of_rows(dtype), {&log_dx}, {&grad, &out}, [](Stream stream, const Views& operands) {
        log_softmax_backward(stream, operands[0], operands[1], operands[2]);
      });
    }
}

TEST(CudaSoftmax, MatchesTheCpuForMaskedNaNAndHugeRows) {
  for (const DType dtype : floats)
    for (const std::int64_t n : {33, 40, 700}) {
      TestArray x(dtype, {5, n}), out(dtype, {5, n}), log_out(dtype, {5, n}), lse(dtype, {5}), grad(dtype, {5, n}),
          dx(dtype, {5, n});
      x.fill([&](std::int64_t i) {
        const double values[] = {i % 2 ? -infinity : 1.0, -infinity, i % n == n / 2 ? nan : 0.5, i % 2 ? 6e4 : -6e4,
                                 i % n == n - 1 ? infinity : 1.0};
        return values[i / n];
      });
      grad.fill([](std::int64_t) { return 1.0; });
      expect_same(slack_of_rows(dtype), {&out, &log_out, &lse}, {&x}, [](Stream stream, const Views& operands) {
        softmax(stream, operands[0], operands[3]);
        log_softmax(stream, operands[1], operands[3]);
        logsumexp(stream, operands[2], operands[3]);
      });
      for (std::int64_t i = n; i < 2 * n; ++i) EXPECT_EQ(out[i], 0);
      EXPECT_EQ(lse[1], -infinity);
      softmax({}, out, x);
      expect_same(slack_of_rows(dtype), {&dx}, {&grad, &out}, [](Stream stream, const Views& operands) {
        softmax_backward(stream, operands[0], operands[1], operands[2]);
      });
    }
}

TEST(CudaSoftmax, OverwritesItsInputWithEqualBitsInEveryOrderOfThreads) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{40, 96}, Shape{3, 1500}, Shape{2, 9001}}) {
    TestArray x(DType::f32, shape), out(DType::f32, shape);
    x.random(random, -5, 5);
    const auto run = [](Stream stream, const Views& operands) { softmax(stream, operands[0], operands.back()); };
    expect_same(slack_of_rows(DType::f32), {&out}, {&x}, run, 4);
    expect_same(slack_of_rows(DType::f32), {&x}, {}, run, 4);
    expect_elements(
        x, [&](std::int64_t i) { return out[i]; }, 0);
  }
}

/// A norm with its operands.
struct NormOperands {
  DType dtype;
  std::int64_t n;
  TestArray x, weight, bias, out, mean, rstd, grad, dx, dweight, dbias;
  NormOperands(DType type, const Shape& shape, std::mt19937_64& random)
      : dtype(type),
        n(shape.back()),
        x(dtype, shape),
        weight(dtype, {n}),
        bias(dtype, {n}),
        out(dtype, shape),
        mean(wide_dtype(dtype), rows_of(shape)),
        rstd(wide_dtype(dtype), rows_of(shape)),
        grad(dtype, shape),
        dx(dtype, shape),
        dweight(dtype, {n}),
        dbias(dtype, {n}) {
    x.random(random, -1, 3);  // one outlier: deviations of a few close elements are mostly rounding
    for (std::int64_t first = 0; first < x.count(); first += n) x.set(first, x[first] - 4);
    weight.random(random);
    bias.random(random);
    grad.random(random);
  }
};

View if_wanted(bool wanted, const View& view) { return wanted ? view : View{}; }

// Chunks of 32 rows, the last one partial; more rows than 256 chunks hold; a warp or a block for each row; more columns
// than registers hold.
const std::vector<Shape> cuda_norm_shapes = {{0, 5},    {1, 1},    {1, 33},   {33, 7},   {70, 32},  {5, 1025},
                                             {40, 300}, {41, 900}, {8300, 3}, {3, 2500}, {2, 5000}, {4, 9, 130}};

class CudaNorms : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  const bool centered_ = std::get<0>(GetParam()), affine_ = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Every, CudaNorms, ::testing::Combine(::testing::Bool(), ::testing::Bool()), [](const auto& p) {
  return std::string(std::get<0>(p.param) ? "Layer" : "Rms") + (std::get<1>(p.param) ? "WithWeight" : "Plain");
});

TEST_P(CudaNorms, AgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : cuda_norm_shapes) {
      if (shape[0] > 1000 && dtype != DType::f32) continue;
      NormOperands norm(dtype, shape, random);
      std::vector<TestArray*> results = {&norm.out, &norm.rstd};
      if (centered_) results.push_back(&norm.mean);
      const std::size_t inputs = results.size();
      expect_same(slack_of_rows(dtype), results, {&norm.x, &norm.weight, &norm.bias},
                  [&](Stream stream, const Views& operands) {
                    const View weight = if_wanted(affine_, operands[inputs + 1]),
                               bias = if_wanted(affine_, operands[inputs + 2]);
                    if (centered_)
                      layer_norm(stream, operands[0], operands[2], operands[1], operands[inputs], weight, bias, 1e-5);
                    else
                      rms_norm(stream, operands[0], operands[1], operands[inputs], weight, 1e-5);
                  });
    }
}

TEST_P(CudaNorms, AgreeWithTheCpuForOverflowingSquares) {
  std::mt19937_64 random(test_seed());
  for (const double scale : {0x1p900, 0x1p-900, 0x1p100, 0x1p-100, nan, infinity})
    for (const DType dtype : floats)
      for (const Shape& shape : {Shape{9, 31}, Shape{2, 513}, Shape{1, 9000}}) {
        const bool of_f64 = dtype == DType::f64, far = scale >= 0x1p900 || scale <= 0x1p-900;
        if (dtype == DType::f16 || (std::isfinite(scale) && far != of_f64)) continue;
        NormOperands norm(dtype, shape, random);
        // Scales every second row, so that rows of one block take both branches.
        norm.x.fill([&](std::int64_t i) { return i / norm.n % 2 ? norm.x[i] : norm.x[i] * scale; });
        std::vector<TestArray*> results = {&norm.out, &norm.rstd};
        if (centered_) results.push_back(&norm.mean);
        const std::size_t x = results.size();
        expect_same(slack_of_rows(dtype), results, {&norm.x}, [&](Stream stream, const Views& operands) {
          if (centered_)
            layer_norm(stream, operands[0], operands[2], operands[1], operands[x], {}, {}, 0);
          else
            rms_norm(stream, operands[0], operands[1], operands[x], {}, 0);
        });
      }
}

TEST_P(CudaNorms, GradientsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : cuda_norm_shapes) {
      if (shape[0] > 1000 && dtype != DType::f32) continue;
      NormOperands norm(dtype, shape, random);
      if (centered_)
        layer_norm({}, norm.out, norm.mean, norm.rstd, norm.x, {}, {}, 1e-5);
      else
        rms_norm({}, norm.out, norm.rstd, norm.x, {}, 1e-5);
      std::vector<TestArray*> results = {&norm.dx};
      if (affine_) results.push_back(&norm.dweight);
      if (affine_ && centered_) results.push_back(&norm.dbias);
      const std::size_t inputs = results.size();
      const auto rows = static_cast<double>(shape.back() ? norm.x.count() / shape.back() : 0);
      // Sums over rows cancel. With one column and a mean, the gradient is 0 but for epsilon.
      const double slack = slack_of_rows(dtype) * (shape.back() == 1 ? 400 : 10) + 4e-7 * std::sqrt(rows);
      expect_same(dtype == DType::f64 ? 1e-11 : slack, results,
                  {&norm.grad, &norm.x, &norm.mean, &norm.rstd, &norm.weight},
                  [&](Stream stream, const Views& operands) {
                    const View *in = operands.data() + inputs, weight = if_wanted(affine_, in[4]);
                    const View dweight = affine_ ? operands[1] : View{};
                    if (centered_)
                      layer_norm_backward(stream, operands[0], dweight, affine_ ? operands[2] : View{}, in[0], in[1],
                                          in[2], in[3], weight);
                    else
                      rms_norm_backward(stream, operands[0], dweight, in[0], in[1], in[3], weight);
                  });
    }
}

TEST(CudaNorm, ComputesOneParameterGradientAlone) {
  std::mt19937_64 random(test_seed());
  NormOperands norm(DType::f32, {70, 40}, random);
  layer_norm({}, norm.out, norm.mean, norm.rstd, norm.x, {}, {}, 1e-5);
  for (const bool weight : {true, false})
    expect_same(1e-5, {&norm.dx, weight ? &norm.dweight : &norm.dbias}, {&norm.grad, &norm.x, &norm.mean, &norm.rstd},
                [&](Stream stream, const Views& operands) {
                  layer_norm_backward(stream, operands[0], if_wanted(weight, operands[1]),
                                      if_wanted(!weight, operands[1]), operands[2], operands[3], operands[4],
                                      operands[5], {});
                });
}

TEST(CudaNorm, GradientsHaveTheSameBitsInEveryOrderOfThreadsAndBlocks) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{300, 96}, Shape{70, 600}, Shape{33, 4500}}) {
    NormOperands norm(DType::f32, shape, random);
    layer_norm({}, norm.out, norm.mean, norm.rstd, norm.x, {}, {}, 1e-5);
    expect_same(
        1e-4, {&norm.dx, &norm.dweight, &norm.dbias}, {&norm.grad, &norm.x, &norm.mean, &norm.rstd, &norm.weight},
        [](Stream stream, const Views& operands) {
          layer_norm_backward(stream, operands[0], operands[1], operands[2], operands[3], operands[4], operands[5],
                              operands[6], operands[7]);
        },
        4);
  }
}

TEST(CudaNorm, MatchesTheRequestsOfASimulatedDevice) {
  std::mt19937_64 random(test_seed());
  const Stream sim{Device{DeviceType::sim, 0}};
  NormOperands norm(DType::bf16, {300, 96}, random);
  layer_norm({}, norm.out, norm.mean, norm.rstd, norm.x, {}, {}, 1e-5);
  const Twin dx(norm.dx), dweight(norm.dweight), grad(norm.grad), x(norm.x), rstd(norm.rstd);
  const auto hash_of = [](Stream stream, const View& to, const View& sums, const View& from, const View& input,
                          const View& factor) {
    CachingAllocator& pool = allocator_for(stream.device);
    pool.reset_sequence_hash();
    rms_norm_backward(stream, to, sums, from, input, factor, {});
    return pool.sequence_hash();
  };
  EXPECT_EQ(hash_of(cuda0, dx.on_device(), dweight.on_device(), grad.on_device(), x.on_device(), rstd.on_device()),
            hash_of(sim, norm.dx, norm.dweight, norm.grad, norm.x, norm.rstd));
}

TEST(CudaRows, HaveTheSameBitsForMisalignedRows) {
  // Rows that begin one element later are not aligned. Their sums have the order of aligned rows.
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const std::int64_t n : {64, 1024}) {
      TestArray x(dtype, {6 * n + 1}), out(dtype, {6 * n}), moved(dtype, {6 * n});
      x.random(random);
      const Twin shifted(x);
      const DeviceArray<std::uint8_t> memory(std::vector<std::uint8_t>(static_cast<std::size_t>(6 * n) * 8, 0));
      const auto rows_at = [&](void* data) { return View{data, dtype, 2, {6, n}, {n, 1}}; };
      const View from = rows_at(shifted.on_device().as<std::uint8_t>() + size_of(dtype)),
                 aligned = rows_at(memory.data());
      copy(cuda0, aligned, from);
      ASSERT_NE(cuda::can_pack<float>(n, {from.data}), cuda::can_pack<float>(n, {aligned.data}));
      const auto result_of = [&](TestArray& to, const View& source) {
        const Twin twin(to);
        View target = source;
        target.data = twin.on_device().data;
        log_softmax(cuda0, target, source);
        twin.fetch();
      };
      result_of(out, aligned);
      result_of(moved, from);
      expect_elements(
          moved, [&](std::int64_t i) { return out[i]; }, 0);
    }
}

struct EntropyCase {
  std::int64_t ignore;
  double smoothing;
};
constexpr EntropyCase entropy_cases[] = {{-100, 0}, {2, 0}, {3, 0.25}};

TEST(CudaCrossEntropy, AgreesWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : row_shapes)
      for (const auto& [ignore, smoothing] : entropy_cases) {
        if (shape.back() < 5) continue;
        for (const DType of_loss : {dtype, compute_dtype(dtype)}) {
          if (shape.back() > 1000 && ignore != 3) continue;
          TestArray x(dtype, shape), targets(DType::i64, rows_of(shape)), loss(of_loss, rows_of(shape)),
              lse(compute_dtype(dtype), rows_of(shape)), dx(dtype, shape), grad(of_loss, rows_of(shape));
          x.random(random, -9, 9);
          targets.random(random, 0, static_cast<double>(std::min<std::int64_t>(shape.back(), 9)));
          grad.random(random);
          expect_same(slack_of_rows(of_loss), {&loss}, {&x, &targets, &lse}, [&](Stream stream, const Views& operands) {
            cross_entropy(stream, operands[0], operands[3], operands[1], operands[2], ignore, smoothing);
          });
          cross_entropy({}, loss, lse, x, targets, ignore, smoothing);
          expect_same(slack_of_rows(dtype), {&dx}, {&grad, &x, &lse, &targets},
                      [&](Stream stream, const Views& operands) {
                        cross_entropy_backward(stream, operands[0], operands[1], operands[2], operands[3], operands[4],
                                               ignore, smoothing);
                      });
        }
      }
}

TEST(CudaCrossEntropy, OverwritesTheLogitsWithABroadcastGradient) {
  std::mt19937_64 random(test_seed());
  for (const Shape& shape : {Shape{9, 37}, Shape{3, 700}}) {
    TestArray x(DType::f32, shape), targets(DType::i64, {shape[0]}), loss(DType::f32, {shape[0]}),
        lse(DType::f32, {shape[0]}), grad(DType::f32, {shape[0]}, Layout::repeated);
    x.random(random, -3, 3);
    targets.random(random, 0, 37);
    grad.random(random);
    cross_entropy({}, loss, lse, x, targets, -100, 0.1);
    expect_same(slack_of_rows(DType::f32), {&x}, {&grad, &lse, &targets}, [](Stream stream, const Views& operands) {
      cross_entropy_backward(stream, operands[0], operands[1], operands[0], operands[2], operands[3], -100, 0.1);
    });
  }
}

TEST(CudaRope, AgreesWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : {Shape{2, 3, 2, 4}, Shape{1, 5, 3, 2}, Shape{1, 7, 1, 134}, Shape{2, 0, 2, 4},
                               Shape{2, 30, 9, 32}, Shape{3, 4, 5, 128}})
      for (const std::int64_t position : {0, 777, 3000000})
        for (const bool inverse : {false, true}) {
          TestArray x(dtype, shape), out(dtype, shape);
          x.random(random);
          const double angles = 3e-16 * static_cast<double>(position);  // an f64 angle is itself rounded
          expect_same(slack_of_rows(dtype) + 4 * angles, {&out}, {&x}, [&](Stream stream, const Views& operands) {
            rope(stream, operands[0], operands[1], position, 10000, inverse);
          });
        }
}

TEST(CudaRope, ScalesFrequenciesLikeTheCpu) {
  std::mt19937_64 random(test_seed());
  RotaryFrequencies frequencies(100.0);
  frequencies.stretch = 0.25, frequencies.kept = 14, frequencies.stretched = 45.5, frequencies.magnitude = 1.5;
  for (const DType dtype : floats)
    for (const bool inverse : {false, true}) {
      TestArray x(dtype, {2, 9, 3, 132}), out(dtype, {2, 9, 3, 132});
      x.random(random);
      expect_same(slack_of_rows(dtype), {&out}, {&x}, [&](Stream stream, const Views& operands) {
        rope(stream, operands[0], operands[1], 5, frequencies, inverse);
      });
    }
}

TEST(CudaRope, RotatesHeadsOfAPackedProjectionInPlace) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats) {
    TestArray packed(dtype, {2, 9, 3, 4, 32});
    packed.random(random);
    expect_same(slack_of_rows(dtype), {&packed}, {}, [](Stream stream, const Views& operands) {
      View keys = operands[0];  // packed[:, :, 1], heads before steps
      keys.rank = 4;
      keys.data = keys.as<std::uint8_t>() + keys.strides[2] * static_cast<std::int64_t>(size_of(keys.dtype));
      keys.shape[2] = 4, keys.strides[2] = operands[0].strides[3];
      keys.shape[3] = 32, keys.strides[3] = 1;
      rope(stream, keys, keys, 5, 10000, false);
    });
  }
}

}  // namespace
}  // namespace poolgrad::kernels
