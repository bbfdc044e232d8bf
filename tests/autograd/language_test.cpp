// Notation for tensors: numbers as operands, comparisons, assignment, indexing, one dimension in place of a list.
#include <gtest/gtest.h>

#include <limits>
#include <type_traits>
#include <vector>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad {
namespace {

using testing_support::all_dtypes;
using testing_support::error_of;
using Doubles = std::vector<double>;

constexpr double unbounded = std::numeric_limits<double>::infinity();

Doubles numbers_of(const Tensor& x) { return x.to_vector<double>(); }
Tensor f64_vector(std::initializer_list<double> numbers) {
  return from_data<double>(numbers, {static_cast<std::int64_t>(numbers.size())});
}
/// 0, 1, 2, ... in f64.
Tensor from_zero(const Shape& shape) {
  return reshape(arange(0.0, static_cast<double>(count(shape)), 1.0, {.dtype = DType::f64}), shape);
}

TEST(Expressions, TheProductOfTwoVectorsIsAScalar) {
  const Tensor a = from_data({1.0, 2.0}, {2}), b = from_data({3.0, 4.0}, {2});
  EXPECT_EQ(matmul(a, b).shape(), Shape{});
  EXPECT_EQ(matmul(a, b).item(), 11.0);
  EXPECT_EQ(matmul(unsqueeze(a, 0), b).shape(), Shape{1});
}

TEST(IntegerArgument, NamesOneDimensionOrOneSize) {
  const Tensor x = from_zero({2, 3});
  EXPECT_EQ(numbers_of(mean(x, -1)), (Doubles{1, 4}));
  EXPECT_EQ(sum(x, 0, true).shape(), (Shape{1, 3}));
  EXPECT_EQ(numbers_of(max(x, 1)), (Doubles{2, 5}));
  EXPECT_EQ(numbers_of(prod(x, 0)), (Doubles{0, 4, 10}));
  EXPECT_EQ(numbers_of(any(x > 4.0, 1)), (Doubles{0, 1}));
  EXPECT_EQ(numbers_of(var(x, -1)), (Doubles{1, 1}));
  EXPECT_EQ(sum(x, {}).item(), 15.0) << "no dimensions are all";
  EXPECT_EQ(zeros(5).shape(), Shape{5});
  EXPECT_EQ(reshape(x, -1).shape(), Shape{6});
  EXPECT_EQ(error_of<IndexError>([&] { mean(x, 2); }), "[mean] dimension 2 is out of range for shape (2, 3)");
  static_assert(!std::is_convertible_v<bool, Dims> && !std::is_convertible_v<double, Dims>,
                "sum(x, true) is no sum over dimension 1");
}

template <class... Numbers>
concept Reduces = requires(const Tensor& x, Numbers... numbers) {
  sum(x, numbers...);
  mean(x, numbers...);
  var(x, numbers...);
  stddev(x, numbers...);
  prod(x, numbers...);
  max(x, numbers...);
  min(x, numbers...);
  logsumexp(x, numbers...);
  any(x, numbers...);
  all(x, numbers...);
  argmax(x, numbers...);
  argmin(x, numbers...);
  norm(x, 2.0, numbers...);
};
template <class... Numbers>
concept AnyReduces = requires(const Tensor& x, Numbers... numbers) {
  sum(x, numbers...);
}
|| requires(const Tensor& x, Numbers... numbers) { mean(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { var(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { stddev(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { prod(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { max(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { min(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { logsumexp(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { any(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { all(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { argmax(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { argmin(x, numbers...); }
|| requires(const Tensor& x, Numbers... numbers) { norm(x, 2.0, numbers...); };

TEST(SecondIntegerArgument, IsNotAKeepDimFlag) {
  static_assert(Reduces<int> && Reduces<int, bool> && Reduces<std::int64_t, bool>);
  static_assert(!AnyReduces<int, int> && !AnyReduces<int, std::int64_t> && !AnyReduces<int, double>,
                "sum(x, 0, 1) is neither sum(x, {0, 1}) nor sum(x, 0, true): it does not compile");
  const Tensor x = from_zero({2, 3});
  EXPECT_EQ(sum(x, {0, 1}).item(), 15.0);
  EXPECT_EQ(sum(x, {0, 1}, true).shape(), (Shape{1, 1}));
  EXPECT_EQ(argmax(x, 0, true).shape(), (Shape{1, 3}));
}

TEST(Comparisons, AreElementwiseWithTensorsAndNumbers) {
  const Tensor x = f64_vector({-1, 0, 0.5, 2}), y = f64_vector({0, 0, 1, 1});
  EXPECT_EQ(numbers_of(x < y), (Doubles{1, 0, 1, 0}));
  EXPECT_EQ(numbers_of(x <= y), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ(numbers_of(x > y), (Doubles{0, 0, 0, 1}));
  EXPECT_EQ(numbers_of(x >= y), (Doubles{0, 1, 0, 1}));
  EXPECT_EQ(numbers_of(x == y), (Doubles{0, 1, 0, 0}));
  EXPECT_EQ(numbers_of(x != y), (Doubles{1, 0, 1, 1}));
  EXPECT_EQ(numbers_of(x > 0.5), (Doubles{0, 0, 0, 1}));
  EXPECT_EQ(numbers_of(0.5 > x), (Doubles{1, 1, 0, 0}));
  EXPECT_EQ(numbers_of(x >= 0.5), numbers_of(0.5 <= x));
  EXPECT_EQ(numbers_of(x <= 0.5), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ(numbers_of(x < 0.5), (Doubles{1, 1, 0, 0}));
  EXPECT_EQ(numbers_of(0.5 < x), (Doubles{0, 0, 0, 1}));
  EXPECT_EQ(numbers_of(0.5 >= x), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ(numbers_of(x == 0.0), (Doubles{0, 1, 0, 0}));
  EXPECT_EQ(numbers_of(2.0 != x), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ((x > y).dtype(), DType::boolean);
  EXPECT_EQ(numbers_of((x > -0.5) & (x < 1.0)), (Doubles{0, 1, 1, 0}));
  EXPECT_EQ(numbers_of((x < 0.0) | (x > 1.0)), (Doubles{1, 0, 0, 1}));
  EXPECT_EQ(numbers_of(~(x > 0.0)), (Doubles{1, 1, 0, 0}));
  EXPECT_EQ(numbers_of(x == f64_vector({std::nan("")})), (Doubles{0, 0, 0, 0}));
  EXPECT_EQ(numbers_of(x < unbounded), (Doubles{1, 1, 1, 1}));
}

TEST(Comparisons, RejectNumbersOutsideAnIntegerDtype) {
  const Tensor x = from_data<std::int64_t>({1, 2, 3}, 3), small = to(x, DType::u8), flags = x > 1.0;
  EXPECT_EQ(numbers_of(x >= 2.0), (Doubles{0, 1, 1}));
  EXPECT_EQ(numbers_of(flags == 1.0), (Doubles{0, 1, 1}));
  EXPECT_EQ(error_of<ValueError>([&] { return x < 2.5; }), "[less] 2.5 does not fit into i64: x (3,) i64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { return small > -1.0; }), "[greater] -1 does not fit into u8: x (3,) u8 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { maximum(x, unbounded); }),
            "[maximum] inf does not fit into i64: x (3,) i64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { return flags & x; }),
            "[&] operands differ in dtype: lhs (3,) bool on cpu, rhs (3,) i64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { return ~x; }), "[~] needs bool tensors: x (3,) i64 on cpu");
}

TEST(Numbers, TakeTheDtypeOfTheTensorOperand) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    const Tensor x = to(f64_vector({0, 3, 7}), dtype), chosen = x > 1.0;
    for (const Tensor& y :
         {maximum(x, 2.0), minimum(2.0, x), where(chosen, x, 5.0), where(chosen, 5.0, x), pow(2.0, x)})
      EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(numbers_of(maximum(2.0, x)), (Doubles{2, 3, 7}));
    EXPECT_EQ(numbers_of(minimum(x, 2.0)), (Doubles{0, 2, 2}));
    EXPECT_EQ(numbers_of(where(chosen, x, 5.0)), (Doubles{5, 3, 7}));
    EXPECT_EQ(numbers_of(where(chosen, 5.0, x)), (Doubles{0, 5, 5}));
    EXPECT_EQ(numbers_of(pow(2.0, x)), (Doubles{1, 8, 128}));
  }
}

TEST(Index, SelectsSlicesAndAddsDimensions) {
  const Tensor x = from_zero({2, 3, 4});
  EXPECT_EQ(numbers_of(x[1][2]), (Doubles{20, 21, 22, 23}));
  EXPECT_EQ(numbers_of(x[-1]), numbers_of(x[1]));
  EXPECT_EQ(numbers_of(x[{0, slice(1, 3), -1}]), (Doubles{7, 11}));
  EXPECT_EQ(x[slice(1)].shape(), (Shape{1, 3, 4}));
  EXPECT_EQ(numbers_of(x[{ellipsis, 0}]), (Doubles{0, 4, 8, 12, 16, 20}));
  EXPECT_EQ(numbers_of(x[{0, ellipsis, slice(0, 4, 3)}]), (Doubles{0, 3, 4, 7, 8, 11}));
  EXPECT_EQ((x[{new_axis, slice(), 0, new_axis}].shape()), (Shape{1, 2, 1, 4}));
  EXPECT_EQ((x[{1, ellipsis, 2, 3}].item()), 23.0) << "an ellipsis may stand for nothing";
  EXPECT_TRUE((x[{0, slice(1, 2)}].shares_storage_with(x)));
  EXPECT_EQ(x[{0}].shape(), x[0].shape());
  EXPECT_EQ(error_of<IndexError>([&] { x[2]; }), "[index] 2 is out of range for dimension 0: x (2, 3, 4) f64 on cpu");
  const auto refused = [&](const Indices& indices) { return error_of<IndexError>([&] { x[indices]; }); };
  EXPECT_EQ(refused({0, -4}), "[index] -4 is out of range for dimension 1: x (2, 3, 4) f64 on cpu");
  EXPECT_EQ(refused({new_axis, slice(), ellipsis, 4}),
            "[index] 4 is out of range for dimension 2: x (2, 3, 4) f64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] {
              x[{0, slice(3, 0, -1)}];
            }),
            "[index] step -1 of dimension 1 is not positive; flip() reverses: x (2, 3, 4) f64 on cpu");
  EXPECT_EQ(error_of<IndexError>([&] { x[{0, 0, 0, 0}]; }), "[index] 4 indices are too many: x (2, 3, 4) f64 on cpu");
  EXPECT_EQ(error_of<IndexError>([&] {
              x[{ellipsis, 0, ellipsis}];
            }),
            "[index] more than one ellipsis: x (2, 3, 4) f64 on cpu");
  static_assert(!std::is_assignable_v<decltype(x[0]), Tensor> && !std::is_assignable_v<decltype(x[{0}]), Tensor>,
                "x[0] = y would change nothing");
}

TEST(Index, PassesGradients) {
  const Tensor x = from_zero({2, 3}).set_requires_grad();
  EXPECT_EQ(numbers_of(grad({sum(square(x[{1, slice(0, 2)}]))}, {x})[0]), (Doubles{0, 0, 0, 6, 8, 0}));
}

TEST(Assignment, WritesThroughEveryViewWithoutRecording) {
  const Tensor x = from_zero({2, 3});
  const std::uint64_t version = x.storage()->version();
  x[1] += 10.0;
  x[{slice(), 0}] *= f64_vector({2, 3});
  EXPECT_EQ(numbers_of(x), (Doubles{0, 1, 2, 39, 14, 15}));
  x[0] -= x[1];
  x[1] /= 3.0;
  EXPECT_EQ(numbers_of(x), (Doubles{-39, -13, -13, 13, 14.0 / 3, 5}));
  EXPECT_EQ(x.storage()->version(), version + 4);
  Tensor parameter = f64_vector({1, 2}).set_requires_grad();
  const NoGradGuard no_grad;
  parameter -= f64_vector({0.5, 1}) * 2.0;
  EXPECT_EQ(numbers_of(parameter), (Doubles{0, 0}));
  EXPECT_TRUE(parameter.is_leaf());
}

TEST(Assignment, ReadsTheOldValuesOfOverlappingSides) {
  Tensor x = from_zero({2, 2}) + 1.0;
  x += x[1];
  EXPECT_EQ(numbers_of(x), (Doubles{4, 6, 6, 8}));
  x *= transpose(x, 0, 1);
  EXPECT_EQ(numbers_of(x), (Doubles{16, 36, 36, 64}));
  x -= x;
  EXPECT_EQ(numbers_of(x), (Doubles{0, 0, 0, 0}));
  Tensor many = from_zero({100, 100}) + 1.0;
  const Tensor product = many * transpose(many, 0, 1), shifted = product + product[0];
  many *= transpose(many, 0, 1);
  EXPECT_EQ(numbers_of(many), numbers_of(product));
  many += many[0];
  EXPECT_EQ(numbers_of(many), numbers_of(shifted));
}

TEST(Assignment, WorksInEveryDtypeOfNumbers) {
  for (const DType dtype : all_dtypes) {
    Tensor x = to(f64_vector({8, 6}), dtype);
    if (dtype == DType::boolean) {
      EXPECT_EQ(error_of<DTypeError>([&] { x += 1.0; }), "[+=] bool is not a numeric dtype: lhs (2,) bool on cpu");
      continue;
    }
    x += 2.0;
    x -= to(f64_vector({4, 2}), dtype);
    x *= 3.0;
    x /= 2.0;
    EXPECT_EQ(numbers_of(x), (Doubles{9, 9})) << to_string(dtype);
    EXPECT_EQ(x.dtype(), dtype);
  }
}

TEST(Assignment, NeedsANoGradGuardForALeafThatRequiresGrad) {
  Tensor x = f64_vector({1, 2}).set_requires_grad();
  EXPECT_EQ(error_of<Error>([&] { x += 1.0; }),
            "[+=] an in-place write to a leaf that requires grad needs a NoGradGuard: lhs (2,) f64 on cpu");
  EXPECT_EQ(
      error_of<Error>([&] { x *= x; }),
      "[*=] an in-place write to a leaf that requires grad needs a NoGradGuard: lhs (2,) f64 on cpu, rhs (2,) f64 "
      "on cpu");
  EXPECT_EQ(numbers_of(x), (Doubles{1, 2}));
}

TEST(Assignment, RecordsTheResultForEveryHandle) {
  const Tensor w = f64_vector({1, 2, 3}).set_requires_grad();
  Tensor total = zeros({}, {.dtype = DType::f64});
  const Tensor handle = total;
  for (int i = 0; i < 3; ++i) total += square(w[i]) * static_cast<double>(i + 1);
  EXPECT_EQ(handle.item(), 1 + 2 * 4 + 3 * 9);
  EXPECT_TRUE(handle.is_same(total) && handle.requires_grad());
  EXPECT_EQ(numbers_of(grad({handle}, {w})[0]), (Doubles{2, 8, 18}));
}

TEST(Assignment, KeepsTheOldFactorsForTheBackward) {
  const Tensor a = f64_vector({2, 3}).set_requires_grad(), b = f64_vector({5, 7}).set_requires_grad();
  Tensor x = a + 1.0;
  x *= b;
  x /= a + 2.0;
  const Tensor want = (a + 1.0) * b / (a + 2.0);
  EXPECT_TRUE(bit_equal(x, want));
  const auto got_gradients = grad({sum(x)}, {a, b}), want_gradients = grad({sum(want)}, {a, b});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(bit_equal(got_gradients[i], want_gradients[i]));
}

TEST(Assignment, RejectsARecordedWriteUnderAViewOrASavedTensor) {
  const Tensor w = f64_vector({1, 2}).set_requires_grad();
  const std::string text =
      "[+=] a view or a backward shares the memory of the left side; write x = x + y instead: lhs (2,) f64 on cpu";
  Tensor x = w * 2.0;
  {
    const Tensor view = x[slice(0, 1)];
    EXPECT_EQ(error_of<Error>([&] { x += 1.0; }), text);
    EXPECT_EQ(numbers_of(x), (Doubles{2, 4}));
  }
  x += 1.0;
  EXPECT_EQ(numbers_of(x), (Doubles{3, 5}));
  Tensor y = exp(w);  // exp's backward reads y
  EXPECT_EQ(error_of<Error>([&] { y += 1.0; }), text);
  EXPECT_EQ(error_of<Error>([&] { x[0] += 1.0; }),
            "[+=] a view or a backward shares the memory of the left side; write x = x + y instead: lhs () f64 on cpu");
}

TEST(Assignment, ToASavedConstantFailsInBackward) {
  const Tensor w = f64_vector({1, 2}).set_requires_grad();
  Tensor x = f64_vector({3, 4});
  const Tensor y = sum(w * x);
  x += 1.0;
  EXPECT_EQ(error_of<Error>([&] { grad({y}, {w}); }),
            "[mul] a saved tensor (2,) f64 on cpu was written in place: saved at version 0, now at version 1");
}

TEST(Assignment, RejectsMismatchesAndChangesNothing) {
  Tensor x = from_zero(3);
  EXPECT_EQ(error_of<ShapeError>([&] {
              x += from_zero({2, 3});
            }),
            "[+=] the right side does not broadcast to the left: lhs (3,) f64 on cpu, rhs (2, 3) f64 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { x += from_zero(2); }),
            "[+=] shapes do not broadcast: lhs (3,) f64 on cpu, rhs (2,) f64 on cpu");
  EXPECT_EQ(error_of<DTypeError>([&] { x += zeros(3); }),
            "[add] operands differ in dtype: lhs (3,) f64 on cpu, rhs (3,) f32 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { x -= Tensor(); }), "[-=] the right side is undefined: lhs (3,) f64 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { expand(from_zero(1), 3) += 1.0; }),
            "[+=] several elements of the left side share one place: lhs (3,) f64 on cpu");
  EXPECT_EQ(error_of<ShapeError>([&] { unfold(x, 0, 2) += 1.0; }),
            "[+=] several elements of the left side share one place: lhs (2, 2) f64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { to(x, DType::i64) += 0.5; }),
            "[+=] integers take whole numbers only, not 0.5: x (3,) i64 on cpu");
  EXPECT_EQ(error_of<ValueError>([&] { to(x, DType::i64) -= 0.5; }),
            "[-=] integers take whole numbers only, not 0.5: x (3,) i64 on cpu");
  EXPECT_EQ(numbers_of(x), (Doubles{0, 1, 2}));
  EXPECT_EQ(x.storage()->version(), 0u);
}

TEST(Assignment, KeepsItsDtypeUnderAutocast) {
  const Tensor w = ones({2}, {.dtype = DType::bf16}).set_requires_grad();
  Tensor wide = ones(2), narrow = ones({2}, {.dtype = DType::bf16});
  const AutocastScope scope(DType::bf16);
  wide += w;
  narrow += ones(2);
  EXPECT_EQ(describe(wide), "(2,) f32 on cpu");
  EXPECT_EQ(describe(narrow), "(2,) bf16 on cpu");
  EXPECT_EQ(numbers_of(wide), numbers_of(narrow));
  EXPECT_EQ(describe(grad({sum(wide)}, {w})[0]), "(2,) bf16 on cpu");
}

TEST(Split, CutsBySizesAndIntoChunks) {
  const Tensor x = from_zero({7});
  const auto pieces = split(x, {2, 0, 5}, 0), same = split(x, std::vector<std::int64_t>{2, 0, 5}, -1);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(numbers_of(pieces[2]), (Doubles{2, 3, 4, 5, 6}));
  EXPECT_EQ(numbers_of(same[0]), (Doubles{0, 1}));
  EXPECT_TRUE(pieces[0].shares_storage_with(x));
  EXPECT_EQ(split(x, {7}, 0).size(), 1u) << "a list of sizes, not a number of parts";
  EXPECT_EQ(chunk(x, 3).size(), 3u);
  EXPECT_EQ(numbers_of(chunk(x, 3)[2]), (Doubles{6}));
  EXPECT_EQ(chunk(x, 5).size(), 4u) << "pieces of two";
  EXPECT_EQ(chunk(x, 100).size(), 7u);
  EXPECT_EQ(chunk(from_zero({2, 0}), 3, 1).size(), 1u);
  const std::string text = " do not add up to dimension 0: x (7,) f64 on cpu";
  EXPECT_EQ(error_of<ShapeError>([&] { split(x, {2, 4}, 0); }), "[split] sizes 2, 4" + text);
  EXPECT_EQ(error_of<ShapeError>([&] { split(x, {8, -1}, 0); }), "[split] sizes 8, -1" + text);
  EXPECT_EQ(error_of<ShapeError>([&] { split(x, {4, 4}, 0); }), "[split] sizes 4, 4" + text);
}

}  // namespace
}  // namespace poolgrad
