// Comparison of tensors, for tests and reports. Mixed dtypes and devices are compared in f64 on the CPU.
#pragma once

#include <concepts>
#include <iosfwd>
#include <optional>
#include <string>

#include "tensor/tensor.h"

namespace testing {
class AssertionResult;  // GoogleTest's type, if the program has it
}

namespace poolgrad {

/// Returns whether the shapes are equal and |a - b| <= absolute + relative * |b| everywhere. Equal infinities are
/// close; NaN equals NaN only with `equal_nan`. Integer differences are exact before the tolerance applies.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false,
              CallSite = {});
/// Returns whether shape, dtype and bits are equal.
bool bit_equal(TensorArg a, const Tensor& b);
/// Returns max |a - b|, 0 for empty tensors, NaN if either has one. Throws ShapeError for different shapes.
double max_difference(TensorArg a, const Tensor& b);
/// Returns ||a - b|| / ||b|| in f64, 0 for equal tensors. A result of NaN fails any comparison. Throws ShapeError for
/// different shapes.
double relative_error(TensorArg a, const Tensor& b);

/// Result of a check: a bool and a text for any test framework. Assertions print the text: EXPECT_TRUE(verdict) of
/// GoogleTest, CHECK(verdict) of Catch2 and doctest.
struct Verdict {
  bool passed = true;
  std::string text = {};

  explicit operator bool() const { return passed; }
  template <std::same_as<::testing::AssertionResult> Result>
  operator Result() const {
    return Result(passed) << text;
  }
};
std::ostream& operator<<(std::ostream& stream, const Verdict& verdict);

/// Tolerance |a - b| <= absolute + relative * |b|. Defaults follow the coarser dtype and equal those of PyTorch's
/// assert_close(), absolute and relative: f64 1e-7 and 1e-7, f32 1e-5 and 1.3e-6, f16 1e-5 and 1e-3, bf16 1e-5 and
/// 1.6e-2, 0 for integers.
struct NearOptions {
  std::optional<double> absolute = {}, relative = {};
  bool equal_nan = false;
};

/// allclose() with a report: the number of differing elements, and index, values and difference of the worst. Fails
/// without a throw for undefined tensors, tensors on sim (no numbers), and different shapes. Dtypes may differ.
Verdict tensors_near(const Tensor& a, const Tensor& b, const NearOptions& options = {}, CallSite = {});
/// Tolerance |a - b| <= absolute.
Verdict tensors_near(const Tensor& a, const Tensor& b, double absolute, CallSite = {});

}  // namespace poolgrad
