// NumPy 2.4 made the expected texts: np.array2string(x, precision=4, threshold=1000, edgeitems=3,
// max_line_width=100) unless a test says otherwise.
#include "tensor/print.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "tensor/creation.h"

namespace poolgrad {
namespace {

constexpr float inf = INFINITY, nan = NAN;

Tensor integers(double stop, const Shape& shape, DType dtype = DType::i64) {
  const Tensor x = arange(0, stop, 1, {.dtype = dtype});
  return x.alias(contiguous_geometry(shape));
}

TEST(Print, AlignsNumbersAtThePoint) {
  EXPECT_EQ(to_string(from_data({1.0f, 2.5f, -3.0f}, {3})), "[ 1.   2.5 -3. ]");
  EXPECT_EQ(to_string(from_data({3.14159265f, 2.71828183f}, {2})), "[3.1416 2.7183]");
  EXPECT_EQ(to_string(from_data({0.0f, -0.0f}, {2})), "[ 0. -0.]");
  EXPECT_EQ(to_string(from_data({1.0f, 2.25f, -30.125f, 4.0f}, {2, 2})),
            "[[  1.      2.25 ]\n"
            " [-30.125   4.   ]]");
}

TEST(Print, NestsBracketsAndSeparatesBlocks) {
  EXPECT_EQ(to_string(integers(12, {2, 2, 3}, DType::f32)),
            "[[[ 0.  1.  2.]\n"
            "  [ 3.  4.  5.]]\n"
            "\n"
            " [[ 6.  7.  8.]\n"
            "  [ 9. 10. 11.]]]");
  EXPECT_EQ(to_string(integers(8, {2, 1, 2, 2})),
            "[[[[0 1]\n"
            "   [2 3]]]\n"
            "\n"
            "\n"
            " [[[4 5]\n"
            "   [6 7]]]] i64");
}

TEST(Print, ShowsAViewInItsOwnOrder) {
  const Tensor x = integers(6, {2, 3});
  EXPECT_EQ(to_string(x.alias(transposed(x.geometry(), 0, 1))),
            "[[0 3]\n"
            " [1 4]\n"
            " [2 5]] i64");
  EXPECT_EQ(to_string(x.alias(expanded(selected(x.geometry(), 0, 1), {2, 3}))),
            "[[3 4 5]\n"
            " [3 4 5]] i64");
}

TEST(Print, ZeroDimensionalHasNoBrackets) {
  EXPECT_EQ(to_string(scalar(3.14159265)), "3.1416");
  EXPECT_EQ(to_string(scalar(-7, {.dtype = DType::i64})), "-7 i64");
  EXPECT_EQ(to_string(scalar(1, {.dtype = DType::boolean})), "True bool");
}

TEST(Print, EmptyShowsItsShapeIfBracketsDoNot) {
  EXPECT_EQ(to_string(zeros({0})), "[]");
  EXPECT_EQ(to_string(zeros({3, 0})), "[] shape (3, 0)");
  EXPECT_EQ(to_string(zeros({0, 2}, {.dtype = DType::i32})), "[] shape (0, 2) i32");
  EXPECT_EQ(to_string(Tensor()), "undefined");
}

TEST(Print, AlignsSpecialValues) {
  EXPECT_EQ(to_string(from_data({nan, inf, -inf, 1.5f}, {4})), "[ nan  inf -inf  1.5]");
  EXPECT_EQ(to_string(from_data({nan, inf}, {2})), "[nan inf]");
  EXPECT_EQ(to_string(from_data({-inf, nan}, {2})), "[-inf  nan]");
  EXPECT_EQ(to_string(from_data({nan, 100000.0f}, {2})), "[    nan 100000.]");
  EXPECT_EQ(to_string(from_data({nan, 1e10f, -inf}, {3})), "[   nan 1.e+10   -inf]");
}

TEST(Print, GoesScientificForLargeTinyAndSpreadMagnitudes) {
  EXPECT_EQ(to_string(from_data({1e-5f, 1.0f}, {2})), "[1.e-05 1.e+00]");
  EXPECT_EQ(to_string(from_data({1e6f, 1.0f}, {2})), "[1.e+06 1.e+00]");
  EXPECT_EQ(to_string(from_data({0.001f, 123.456f}, {2})), "[1.0000e-03 1.2346e+02]");
  EXPECT_EQ(to_string(from_data({1e-300, 1e5, -1e308}, {3})), "[ 1.e-300  1.e+005 -1.e+308] f64");
  EXPECT_EQ(to_string(from_data({0.01f, 10.0f}, {2})), "[ 0.01 10.  ]") << "three decades exactly";
  EXPECT_EQ(to_string(from_data({0.01, 10.0001}, {2})), "[1.e-02 1.e+01] f64");
}

TEST(Print, ShortestDigitsDependOnTheDtype) {
  EXPECT_EQ(to_string(from_data({Half(0.1f), Half(1.0f / 3), Half(999.5f)}, {3})),
            "[9.998e-02 3.333e-01 9.995e+02] f16");
  EXPECT_EQ(to_string(from_data({Half(0.3f), Half(1000.0f)}, {2})), "[3.e-01 1.e+03] f16");
  EXPECT_EQ(to_string(from_data({BFloat16(0.1f), BFloat16(2.5f)}, {2})), "[0.1 2.5] bf16");
}

TEST(Print, IntegersAndBoolsAlignToTheRight) {
  EXPECT_EQ(to_string(from_data({-1, 10, 100, 0}, {2, 2})),
            "[[ -1  10]\n"
            " [100   0]] i32");
  using Limits = std::numeric_limits<std::int64_t>;
  EXPECT_EQ(to_string(from_data({Limits::min(), Limits::max()}, {2})),
            "[-9223372036854775808  9223372036854775807] i64");
  EXPECT_EQ(to_string(from_data<std::uint8_t>({0, 255}, {2})), "[  0 255] u8");
  EXPECT_EQ(to_string(from_data({true, false, false, true}, {2, 2})),
            "[[ True False]\n"
            " [False  True]] bool");
}

TEST(Print, SummarizesLongDimensions) {
  EXPECT_EQ(to_string(integers(2000, {2000})), "[   0    1    2 ... 1997 1998 1999] i64");
  EXPECT_EQ(to_string(integers(1500, {2, 2, 375}, DType::i32)),
            "[[[   0    1    2 ...  372  373  374]\n"
            "  [ 375  376  377 ...  747  748  749]]\n"
            "\n"
            " [[ 750  751  752 ... 1122 1123 1124]\n"
            "  [1125 1126 1127 ... 1497 1498 1499]]] i32");
  const Tensor x = arange(0, 300, 0.125);
  EXPECT_EQ(to_string(x.alias(contiguous_geometry({40, 60}))),
            "[[0.0000e+00 1.2500e-01 2.5000e-01 ... 7.1250e+00 7.2500e+00 7.3750e+00]\n"
            " [7.5000e+00 7.6250e+00 7.7500e+00 ... 1.4625e+01 1.4750e+01 1.4875e+01]\n"
            " [1.5000e+01 1.5125e+01 1.5250e+01 ... 2.2125e+01 2.2250e+01 2.2375e+01]\n"
            " ...\n"
            " [2.7750e+02 2.7762e+02 2.7775e+02 ... 2.8462e+02 2.8475e+02 2.8488e+02]\n"
            " [2.8500e+02 2.8512e+02 2.8525e+02 ... 2.9212e+02 2.9225e+02 2.9238e+02]\n"
            " [2.9250e+02 2.9262e+02 2.9275e+02 ... 2.9962e+02 2.9975e+02 2.9988e+02]]");
}

TEST(Print, ReadsOnlyTheShownElements) {
  const Tensor one = ones({1, 1});
  const Tensor wide = one.alias(expanded(one.geometry(), {1 << 20, 1 << 20}));  // 2^40 elements in 4 bytes
  EXPECT_EQ(to_string(wide, {.edge_items = 1}),
            "[[1. ... 1.]\n"
            " ...\n"
            " [1. ... 1.]]");
}

TEST(Print, WrapsLongRows) {
  EXPECT_EQ(to_string(arange(0, 40)),
            "[ 0.  1.  2.  3.  4.  5.  6.  7.  8.  9. 10. 11. 12. 13. 14. 15. 16. 17. 18. 19. 20. 21. 22. 23.\n"
            " 24. 25. 26. 27. 28. 29. 30. 31. 32. 33. 34. 35. 36. 37. 38. 39.]");
  EXPECT_EQ(to_string(integers(10, {10}), {.line_width = 12}),
            "[0 1 2 3 4\n"
            " 5 6 7 8 9] i64");
}

TEST(Print, FollowsItsOptions) {
  EXPECT_EQ(to_string(integers(100, {10, 10}), {.threshold = 50, .edge_items = 1}),
            "[[ 0 ...  9]\n"
            " ...\n"
            " [90 ... 99]] i64");
  EXPECT_EQ(to_string(from_data({1.0 / 3, 2.5}, {2}), {.precision = 8}), "[0.33333333 2.5       ] f64");
  EXPECT_EQ(to_string(from_data({1.4f, 2.6f}, {2}), {.precision = 0}), "[1. 3.]");
  EXPECT_EQ(to_string(from_data({2.675, 0.12345}, {2}), {.precision = 2}), "[2.67 0.12] f64");
}

TEST(Print, WorksOnStreams) {
  std::ostringstream stream;
  stream << from_data({1.5f}, {1});
  EXPECT_EQ(stream.str(), "[1.5]");
  stream.str("");
  const Tensor x = from_data({1.0, 2.0}, {1, 2});
  stream << x.shape() << ' ' << x.dtype() << ' ' << x.device() << ' ' << x.strides();
  EXPECT_EQ(stream.str(), "(1, 2) f64 cpu (2, 1)");
}

}  // namespace
}  // namespace poolgrad
