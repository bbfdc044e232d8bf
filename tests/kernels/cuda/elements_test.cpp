// The elementwise kernels on the emulated device, compared with the CPU's. Operations that IEEE 754 rounds exactly have
// the same bits; the others stay within the tolerance of the dtype. Memory around the operands must not change.
#include "kernels/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/transpose.cuh"
#include "tests/kernels/cuda/twin.h"
#include "tests/kernels/elementwise_reference.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

const std::vector<Shape>& shapes = twin_shapes;

bool is_truth(UnaryOp op) { return op == UnaryOp::logical_not || op == UnaryOp::isnan || op == UnaryOp::isfinite; }

/// Operations with exact rounding, without a product and a sum that may be fused.
bool exact_value(UnaryOp op) {
  static const std::set<UnaryOp> others = {
      UnaryOp::exp,   UnaryOp::expm1,  UnaryOp::log,      UnaryOp::log1p, UnaryOp::sin,       UnaryOp::cos,
      UnaryOp::tanh,  UnaryOp::erf,    UnaryOp::sigmoid,  UnaryOp::gelu,  UnaryOp::gelu_tanh, UnaryOp::silu,
      UnaryOp::power, UnaryOp::affine, UnaryOp::softplus, UnaryOp::log2,  UnaryOp::tan,       UnaryOp::asin,
      UnaryOp::acos,  UnaryOp::atan,   UnaryOp::sinh,     UnaryOp::cosh,  UnaryOp::log10,     UnaryOp::exp2,
      UnaryOp::mish,  UnaryOp::elu};
  return !others.contains(op);
}
bool exact_gradient(UnaryOp op) {
  static const std::set<UnaryOp> others = {UnaryOp::sin,      UnaryOp::cos,       UnaryOp::tanh, UnaryOp::erf,
                                           UnaryOp::gelu,     UnaryOp::gelu_tanh, UnaryOp::silu, UnaryOp::power,
                                           UnaryOp::softplus, UnaryOp::tan,       UnaryOp::atan, UnaryOp::sinh,
                                           UnaryOp::cosh,     UnaryOp::mish,      UnaryOp::elu};
  return !others.contains(op);
}

class CudaUnary : public ::testing::TestWithParam<UnaryDefinition> {
 protected:
  const UnaryDefinition definition_ = GetParam();
  const UnaryOp op_ = definition_.op;
  std::mt19937_64 random_{test_seed()};
  static constexpr double a_ = 2.5, b_ = 3.25;

  DType result_of(DType dtype) const { return is_truth(op_) ? DType::boolean : dtype; }
  TestArray& points(TestArray& x) {
    if (is_floating(x.dtype())) return x.random(random_, definition_.low, definition_.high);
    return x.random(random_, x.dtype() == DType::u8 || definition_.low > 0 ? 0 : -5, 6);
  }
};
INSTANTIATE_TEST_SUITE_P(Every, CudaUnary, ::testing::ValuesIn(unary_definitions()),
                         [](const auto& parameter) { return std::string(to_string(parameter.param.op)); });

TEST_P(CudaUnary, AgreesWithTheCpuForEveryDtypeAndShape) {
  for (const DType dtype : all_dtypes) {
    if (!is_floating(dtype) && !definition_.on_integers) continue;
    const double slack = is_floating(dtype) && !exact_value(op_) ? 2 * tolerance(dtype) : bits;
    for (const Shape& shape : shapes) {
      TestArray x(dtype, shape), out(result_of(dtype), shape);
      points(x);
      expect_same(slack, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
        unary(stream, op_, operands[0], operands[1], a_, b_);
      });
    }
  }
}

TEST_P(CudaUnary, GradientAgreesWithTheCpu) {
  for (const DType dtype : floats)
    for (const Shape& shape : shapes) {
      TestArray x(dtype, shape), y(dtype, shape), grad(dtype, shape), dx(dtype, shape);
      points(x);
      y.fill([&](std::int64_t i) { return static_cast<double>(definition_.value(x[i], a_, b_)); });
      grad.random(random_);
      expect_same(exact_gradient(op_) ? bits : 4 * tolerance(dtype), {&dx}, {&grad, &x, &y},
                  [&](Stream stream, const std::vector<View>& operands) {
                    std::vector<View> given = operands;
                    if (!needs_input(op_)) given[2].data = nullptr;
                    if (!needs_output(op_)) given[3].data = nullptr;
                    unary_backward(stream, op_, given[0], given[1], given[2], given[3], a_, b_);
                  });
    }
}

TEST_P(CudaUnary, GivesTheSameBitsForAnyLayout) {
  for (const Layout in : input_layouts)
    for (const Layout to : output_layouts) {
      const Shape shape = {11, 5, 41};
      TestArray x(DType::f32, shape, in), out(result_of(DType::f32), shape, to), dense(DType::f32, shape),
          expected(result_of(DType::f32), shape);
      points(x);
      dense.fill([&](std::int64_t i) { return x[i]; });
      const Twin from(x), target(out), dense_from(dense), dense_target(expected);
      unary(cuda0, op_, target.on_device(), from.on_device(), a_, b_);
      unary(cuda0, op_, dense_target.on_device(), dense_from.on_device(), a_, b_);
      target.fetch();
      dense_target.fetch();
      expect_elements(
          out, [&](std::int64_t i) { return expected[i]; }, 0);
    }
}

class CudaBinary : public ::testing::TestWithParam<BinaryDefinition> {};
INSTANTIATE_TEST_SUITE_P(Every, CudaBinary, ::testing::ValuesIn(binary_definitions()),
                         [](const auto& parameter) { return std::string(to_string(parameter.param.op)); });

TEST_P(CudaBinary, AgreesWithTheCpuForEveryDtypeShapeAndLayout) {
  std::mt19937_64 random(test_seed());
  const BinaryOp op = GetParam().op;
  for (const DType dtype : all_dtypes) {
    if (!is_floating(dtype) && !GetParam().on_integers) continue;
    const DType result = GetParam().truth ? DType::boolean : dtype;
    const double slack =
        (op == BinaryOp::pow || op == BinaryOp::atan2) && is_floating(dtype) ? 2 * tolerance(dtype) : bits;
    const bool positive = op == BinaryOp::pow || dtype == DType::u8;
    const auto compare = [&](const Shape& shape, Layout of_x, Layout of_y, Layout of_out) {
      TestArray x(dtype, shape, of_x), y(dtype, shape, of_y), out(result, shape, of_out);
      x.random(random, positive ? 1 : -4, 4);
      y.random(random, positive ? 1 : -4, 4);
      expect_same(slack, {&out}, {&x, &y}, [&](Stream stream, const std::vector<View>& operands) {
        binary(stream, op, operands[0], operands[1], operands[2]);
      });
    };
    for (const Shape& shape : shapes) compare(shape, Layout::contiguous, Layout::contiguous, Layout::contiguous);
    compare({13, 7, 20}, Layout::repeated, Layout::transposed, Layout::spread);
    compare({13, 7, 20}, Layout::reversed, Layout::repeated, Layout::contiguous);
  }
}

TEST(CudaElements, BlendsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : shapes) {
      TestArray x(dtype, shape), y(dtype, shape, Layout::transposed), out(dtype, shape);
      x.random(random, 0, 3);
      y.random(random, 0, 3);
      expect_same(is_floating(dtype) ? 2 * tolerance(dtype) : bits, {&out}, {&x, &y},
                  [&](Stream stream, const std::vector<View>& operands) {
                    axpby(stream, operands[0], 3, operands[1], 2, operands[2]);
                  });
    }
}

TEST(CudaElements, ChoicesAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : all_dtypes)
    for (const Layout layout : input_layouts) {
      TestArray condition(DType::boolean, {17, 71}, layout), x(dtype, {17, 71}), y(dtype, {17, 71}, Layout::spread),
          out(dtype, {17, 71});
      condition.random(random, 0, 2);
      x.random(random, 0, 100);
      y.random(random, 0, 100);
      expect_same(bits, {&out}, {&condition, &x, &y}, [](Stream stream, const std::vector<View>& operands) {
        where(stream, operands[0], operands[1], operands[2], operands[3]);
      });
    }
}

TEST(CudaElements, GatesAndTheirGradientsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : shapes) {
      TestArray gate(dtype, shape), up(dtype, shape), grad(dtype, shape), out(dtype, shape), dgate(dtype, shape),
          dup(dtype, shape, Layout::transposed);
      gate.random(random, -5, 5);
      up.random(random);
      grad.random(random);
      expect_same(4 * tolerance(dtype), {&out}, {&gate, &up}, [](Stream stream, const std::vector<View>& operands) {
        silu_mul(stream, operands[0], operands[1], operands[2]);
      });
      expect_same(8 * tolerance(dtype), {&dgate, &dup}, {&grad, &gate, &up},
                  [](Stream stream, const std::vector<View>& operands) {
                    silu_mul_backward(stream, operands[0], operands[1], operands[2], operands[3], operands[4]);
                  });
    }
}

TEST(CudaElements, FillsAndRangesAgreeWithTheCpu) {
  for (const DType dtype : all_dtypes)
    for (const Layout layout : output_layouts) {
      TestArray out(dtype, {9, 37}, layout), range(dtype, {333}, layout);
      expect_same(bits, {&out}, {},
                  [](Stream stream, const std::vector<View>& operands) { fill(stream, operands[0], 3); });
      expect_same(bits, {&range}, {}, [](Stream stream, const std::vector<View>& operands) {
        arange(stream, operands[0], ArithmeticSequence::of_doubles(0, 0.5));
      });
    }
}

TEST(CudaElements, RoundToHalfTypesLikeTheCpu) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const Layout layout : output_layouts) {
      TestArray out(dtype, {37}, layout), range(dtype, {333}, layout);
      for (const double value : {2049.0000001, 1.003906251})
        expect_same(bits, {&out}, {},
                    [&](Stream stream, const std::vector<View>& operands) { fill(stream, operands[0], value); });
      expect_same(bits, {&range}, {}, [](Stream stream, const std::vector<View>& operands) {
        arange(stream, operands[0], ArithmeticSequence::of_doubles(1.003906251, 1.0 / 128));
      });
    }
}

TEST(CudaElements, IntegersOfARangeAreExact) {
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const std::int64_t first = dtype == DType::i64 ? (std::int64_t{1} << 53) + 1 : 3;
    TestArray range(dtype, {61});
    for (const ArithmeticSequence& numbers :
         {ArithmeticSequence::of_integers(first, 1), ArithmeticSequence::between(first, first + 150, 60),
          ArithmeticSequence::between(first + 150, first, 60)})
      expect_same(bits, {&range}, {},
                  [&](Stream stream, const std::vector<View>& operands) { arange(stream, operands[0], numbers); });
  }
}

TEST(CudaCopy, CastsAgreeWithTheCpu) {
  std::mt19937_64 random(test_seed());
  for (const DType from : all_dtypes)
    for (const DType to : all_dtypes)
      for (const Shape& shape : {Shape{}, Shape{0}, Shape{1025}, Shape{13, 29}}) {
        TestArray x(from, shape), out(to, shape, Layout::transposed), back(to, shape);
        x.random(random, 0, 9);
        for (TestArray* target : {&out, &back})
          expect_same(bits, {target}, {&x},
                      [](Stream stream, const std::vector<View>& operands) { copy(stream, operands[0], operands[1]); });
      }
}

TEST(CudaCopy, RoundsOnceToHalfTypes) {
  std::mt19937_64 random(test_seed());
  for (const DType from : {DType::f64, DType::i64, DType::i32})
    for (const DType to : {DType::f16, DType::bf16}) {
      TestArray x(from, {2051}), out(to, {2051});
      // Close to the midpoint of two numbers with 8 or 11 bits.
      x.fill([&](std::int64_t i) {
        const double middle =
            static_cast<double>(2 * (random() % (to == DType::f16 ? 1024 : 128)) + 1) + (to == DType::f16 ? 2048 : 256);
        if (from == DType::f64) return std::ldexp(middle * (1 + 0x1p-40 * static_cast<double>(i % 3 - 1)), -12);
        return std::ldexp(middle, to == DType::f16 ? 4 : 17) + static_cast<double>(i % 3 - 1);
      });
      expect_same(bits, {&out}, {&x},
                  [](Stream stream, const std::vector<View>& operands) { copy(stream, operands[0], operands[1]); });
    }
}

TEST(CudaCopy, MovesBitsWhereTheDtypeIsTheSame) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8})
    for (const Layout layout : input_layouts) {
      TestArray x(dtype, {7, 11, 13}, layout), out(dtype, {7, 11, 13});  // poisoned with NaN of every payload
      for (std::size_t i = 0; i < x.bytes().size(); ++i)
        if (x.bytes()[i] == 0xff) const_cast<std::uint8_t&>(x.bytes()[i]) = static_cast<std::uint8_t>(random() | 1);
      expect_same(bits, {&out}, {&x},
                  [](Stream stream, const std::vector<View>& operands) { copy(stream, operands[0], operands[1]); });
    }
}

TEST(CudaCopy, TransposesTilesOfEveryWord) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8})
    for (const Shape& shape : {Shape{1, 1, 33, 70}, Shape{2, 3, 64, 32}, Shape{3, 40, 5, 101}, Shape{1, 2, 600, 4},
                               Shape{2, 1, 132, 68}, Shape{1, 2, 64, 192}})
      for (const std::array<int, 4>& order : {std::array{0, 1, 3, 2}, {3, 0, 2, 1}, {0, 3, 1, 2}, {3, 2, 1, 0}}) {
        const auto turned = [&](const View& x) {
          View view = x;
          for (std::size_t d = 0; d < 4; ++d) view.shape[d] = x.shape[order[d]], view.strides[d] = x.strides[order[d]];
          return view;
        };
        const auto dense = [&](View view, void* data) {
          for (std::int64_t d = 3, step = 1; d >= 0; step *= view.shape[d--]) view.strides[d] = step;
          view.data = data;
          return view;
        };
        TestArray x(dtype, shape), out(dtype, shape);
        x.random(random, 0, 200);
        const bool by_tiles = cuda::Transposition::between(dense(turned(x), out.view().data), turned(x)).has_value();
        if (order[2] == 3) {
          EXPECT_EQ(by_tiles, shape[2] * shape[3] >= 512) << shape[2] << " x " << shape[3];
        }
        expect_same(bits, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
          copy(stream, dense(turned(operands[1]), operands[0].data), turned(operands[1]));
        });
      }
}

TEST(CudaCopy, GoesToTheDeviceAndBackInAnyLayoutAndDtype) {
  std::mt19937_64 random(test_seed());
  for (const DType there : {DType::f64, DType::f16, DType::i32})
    for (const Layout from : input_layouts)
      for (const Layout on_device : output_layouts)
        for (const Layout to : output_layouts) {
          TestArray x(DType::f32, {5, 3, 17}, from), middle(there, {5, 3, 17}, on_device),
              back(DType::f32, {5, 3, 17}, to);
          x.random(random, 0, 50).fill([&](std::int64_t i) { return std::floor(x[i]); });
          const Twin twin(middle);
          copy(cuda0, twin.on_device(), x);
          TestArray gone(DType::f32, {5, 3, 17}, from);  // the source may change after the call returns
          copy(cuda0, back, twin.on_device());
          expect_elements(
              back, [&](std::int64_t i) { return x[i]; }, 0);
          twin.fetch();
        }
}

TEST(CudaElements, SupportMisalignedPacks) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : {DType::f32, DType::bf16, DType::u8})
    for (int shift = 0; shift < 8; ++shift) {
      TestArray x(dtype, {1000}), out(dtype, {1000});
      x.random(random, 0, 5);
      expect_same(bits, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
        std::vector<View> part = operands;
        for (std::size_t k = 0; k < 2; ++k) {
          part[k].data = part[k].as<std::uint8_t>() + static_cast<std::size_t>(shift) * size_of(dtype) * (k + 1) / 2;
          part[k].shape[0] = 900 + shift;
        }
        if (reinterpret_cast<std::uintptr_t>(part[0].data) % size_of(dtype) == 0)
          unary(stream, UnaryOp::square, part[0], part[1]);
      });
    }
}

TEST(CudaElements, HalfTypesMove16BytesAtOnce) {
  alignas(16) std::byte memory[64] = {};
  const auto of = [&](DType dtype, std::ptrdiff_t from = 0, std::int64_t count = 16) {
    return View{memory + from, dtype, 1, {count}, {1}};
  };
  const auto in_pairs = [&](const View& a, const View& b) {
    return cuda::elements_of<float>(std::array{a, b}).in_pairs;
  };
  EXPECT_TRUE(in_pairs(of(DType::bf16), of(DType::bf16)));
  EXPECT_TRUE(in_pairs(of(DType::boolean), of(DType::f16)));
  EXPECT_TRUE(in_pairs(of(DType::boolean, 8), of(DType::f16, 16)));
  EXPECT_FALSE(in_pairs(of(DType::bf16, 8), of(DType::bf16))) << "aligned for four, not for eight";
  EXPECT_FALSE(in_pairs(of(DType::bf16), of(DType::f32))) << "four of f32 are 16 bytes";
  EXPECT_FALSE(cuda::elements_of<double>(std::array{of(DType::boolean), of(DType::boolean)}).in_pairs);
}

TEST(CudaElements, PairedAndSinglePacksCoverEveryElement) {
  std::mt19937_64 random(test_seed());
  for (const DType from : {DType::f32, DType::bf16, DType::f16})
    for (const DType to : {DType::f32, DType::bf16, DType::boolean})
      for (std::int64_t count = 1; count < 70; ++count) {
        TestArray x(from, {count}), out(to, {count});
        x.random(random, -1, 2).fill([&](std::int64_t i) { return std::floor(x[i]); });
        expect_same(bits, {&out}, {&x}, [&](Stream stream, const std::vector<View>& operands) {
          if (to == DType::boolean)
            unary(stream, UnaryOp::logical_not, operands[0], operands[1]);
          else
            copy(stream, operands[0], operands[1]);
        });
      }
}

TEST(CudaElements, PacksOfRowsSupportBroadcastAndGaps) {
  std::mt19937_64 random(test_seed());
  for (const auto& [dtype, truth] : {std::pair{DType::f32, false},
                                     {DType::bf16, false},
                                     {DType::f64, false},
                                     {DType::i64, false},
                                     {DType::f32, true},
                                     {DType::f16, true}})
    for (const Shape& shape : {Shape{3, 5, 8}, Shape{7, 3, 4}, Shape{2, 9, 24}, Shape{3, 5, 7}, Shape{1, 1, 333}})
      // Bits of the dimensions in which y has one element, and additional elements between the rows of x.
      for (const int once : {0, 1, 3, 4, 5, 6, 7})
        for (const std::int64_t gap : {0, 8, 1}) {
          TestArray x(dtype, {shape[0], shape[1], shape[2] + gap}), y(dtype, shape),
              out(truth ? DType::boolean : dtype, shape);
          x.random(random, -3, 4);
          y.random(random, -3, 4);
          std::array<View, 3> views = {out.view(), y.view(), x.view()};
          const auto laid_out = [&](std::vector<View> operands) {
            operands[2].shape[2] = shape[2];
            for (int d = 0; d < 3; ++d)
              if (once >> d & 1) operands[1].strides[d] = 0;
            return operands;
          };
          expect_same(bits, {&out}, {&y, &x}, [&](Stream stream, const std::vector<View>& operands) {
            const std::vector<View> o = laid_out(operands);
            binary(stream, truth ? BinaryOp::lt : BinaryOp::add, o[0], o[2], o[1]);
          });
          if (dtype != DType::f32 || truth) continue;
          const std::vector<View> o = laid_out({views.begin(), views.end()});
          auto all = cuda::elements_of<float>(std::array{o[0], o[2], o[1]});
          cuda::take_packs_of_rows<float, 1>(all);
          const bool rows = shape[0] * shape[1] > 1, even = shape[2] % 4 == 0 && gap != 1;
          const bool one_row = !rows || (gap == 0 && (once == 0 || once == 7));
          EXPECT_EQ(all.packs, even || one_row ? out.count() / 4 : 0) << once << ' ' << gap << ' ' << shape[2];
        }
}

TEST(CudaElements, Use64BitIndicesBeyond32Bits) {
  float nothing = 0;
  const auto narrow = [&](const View& a, const View& b) { return cuda::elements_of<float>(std::array{a, b}).narrow; };
  const auto view = [&](std::int64_t rows, std::int64_t stride) {
    return View{&nothing, DType::f32, 2, {rows, 3}, {stride, 1}};
  };
  EXPECT_TRUE(narrow(view(2, 2147483645), view(2, 4)));
  EXPECT_FALSE(narrow(view(2, 2147483646), view(2, 4)));
  EXPECT_FALSE(narrow(view(2, 4), view(2, -2147483647)));
  EXPECT_FALSE(narrow(view(std::int64_t{1} << 30, 3), view(std::int64_t{1} << 30, 0)));
}

TEST(CudaElements, BothWidthsOfIndicesFindTheSameElements) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {6, 7, 9}, Layout::transposed), out(DType::f32, {6, 7, 9}, Layout::reversed);
  x.random(random);
  auto all = cuda::elements_of<float>(std::array<View, 2>{out, x});
  ASSERT_TRUE(all.narrow);
  for (std::int64_t i = 0; i < all.count; ++i) {
    std::int64_t narrow[2], wide[2];
    cuda::offsets_of<std::int32_t>(all, i, narrow);
    cuda::offsets_of<std::int64_t>(all, i, wide);
    EXPECT_EQ(narrow[0], wide[0]);
    EXPECT_EQ(narrow[1], wide[1]);
  }
}

TEST(CudaElements, TemporariesReuseOneBlockWithoutWaiting) {
  // A freed block serves the next allocation on its stream: a hundred temporaries take one block.
  std::mt19937_64 random(test_seed());
  CachingAllocator& pool = allocator_for(cuda0.device);
  const DeviceArray<float> x(std::vector<float>(1000, 1.0f));
  const View whole{x.data(), DType::f32, 1, {1000}, {1}};
  pool.reset_peaks();
  const std::uint64_t before = pool.statistics().allocated_bytes.current;
  for (int repeat = 0; repeat < 100; ++repeat) {
    Workspace<float> temporary(cuda0, "test", 1000);
    View y = whole;
    y.data = temporary.data();
    unary(cuda0, UnaryOp::affine, y, whole, 1, 1);
    copy(cuda0, whole, y);
  }
  EXPECT_LE(pool.statistics().allocated_bytes.peak - before, 2 * 4096u);
  EXPECT_EQ(x.read(), std::vector<float>(1000, 101.0f));
}

}  // namespace
}  // namespace poolgrad::kernels
