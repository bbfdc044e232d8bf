#include <gtest/gtest.h>

#include <cmath>

#include "kernels/rows.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

struct Rotation {
  std::int64_t position;
  double base;
  bool inverse;
};

/// Element i of x (B, H, T, D), or of (B, T, H, D) if `steps_first`, rotated by the definition.
double rotated(const TestArray& x, std::int64_t i, bool steps_first, const Rotation& by) {
  const View& shape = x.view();
  const std::int64_t size = shape.shape[3], half = size / 2, d = i % size, pair = d % half;
  const std::int64_t t =
      i / size % (steps_first ? shape.shape[1] * shape.shape[2] : shape.shape[2]) / (steps_first ? shape.shape[2] : 1);
  const double angle = static_cast<double>(by.position + t) *
                       std::pow(by.base, -2.0 * static_cast<double>(pair) / static_cast<double>(size));
  const double c = std::cos(angle), s = by.inverse ? -std::sin(angle) : std::sin(angle);
  const std::int64_t low = i - d + pair;
  return d < half ? x[low] * c - x[low + half] * s : x[low + half] * c + x[low] * s;
}

constexpr Rotation rotations[] = {
    {0, 10000, false}, {0, 10000, true}, {5, 100, false}, {777, 10000, false}, {777, 10000, true}};
// More pairs than a block of 64, odd lengths, one pair, no steps.
const std::vector<Shape> rope_shapes = {{2, 3, 2, 4}, {1, 5, 3, 2}, {1, 7, 1, 134}, {2, 0, 2, 4}, {1, 300, 2, 30}};

TEST(Rope, AgreesWithTheDefinition) {
  std::mt19937_64 random(test_seed());
  for (const DType dtype : floats)
    for (const Shape& shape : rope_shapes)
      for (const Rotation& by : rotations) {
        TestArray x(dtype, shape), out(dtype, shape);
        x.random(random);
        rope({}, out, x, by.position, by.base, by.inverse);
        const double each = tolerance(dtype) + (dtype == DType::f64 ? 1e-12 : 0);  // angles up to 1000
        expect_elements(
            out, [&](std::int64_t i) { return rotated(x, i, true, by); }, each, 4 * each);
      }
}

TEST(Rope, SupportsHeadsBeforeSteps) {
  std::mt19937_64 random(test_seed());
  const auto steps_before_heads = [](View view) {
    std::swap(view.shape[1], view.shape[2]);
    std::swap(view.strides[1], view.strides[2]);
    return view;
  };
  for (const DType dtype : floats) {
    TestArray x(dtype, {2, 3, 70, 6}), out(dtype, {2, 3, 70, 6});
    x.random(random);
    const Rotation by{9, 1000, false};
    rope({}, steps_before_heads(out), steps_before_heads(x), by.position, by.base, by.inverse);
    expect_elements(
        out, [&](std::int64_t i) { return rotated(x, i, false, by); }, 2 * tolerance(dtype), 4 * tolerance(dtype));
  }
}

TEST(Rope, RotatesInPlaceAndBack) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f64, {2, 9, 2, 8}), original(DType::f64, {2, 9, 2, 8});
  x.random(random);
  original.fill([&](std::int64_t i) { return x[i]; });
  rope({}, x, x, 40, 10000, false);
  expect_elements(
      x,
      [&](std::int64_t i) {
        return rotated(original, i, true, {40, 10000, false});
      },
      1e-13, 1e-13);
  rope({}, x, x, 40, 10000, true);
  expect_elements(
      x, [&](std::int64_t i) { return original[i]; }, 1e-14, 1e-14);
}

TEST(Rope, HasTheSameBitsForAnyThreadCount) {
  std::mt19937_64 random(test_seed());
  TestArray x(DType::f32, {2, 300, 4, 32}), out(DType::f32, {2, 300, 4, 32});
  x.random(random);
  expect_same_bits_for_any_thread_count(out, [&] { rope({}, out, x, 11, 10000, false); });
}

}  // namespace
}  // namespace poolgrad::kernels
