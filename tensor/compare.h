// Comparison of tensors, for tests and reports. Mixed dtypes and devices are compared in f64 on the CPU.
#pragma once

#include <concepts>
#include <iosfwd>
#include <optional>
#include <string>

#include "tensor/tensor.h"

namespace testing {
class AssertionResult;  // GoogleTest's, where a program has it
}

namespace poolgrad {

/// Same shape and |a - b| <= absolute + relative * |b| everywhere; equal infinities are close, and NaN is equal only to
/// NaN when `equal_nan`. Integers compare exactly before the tolerance is looked at.
bool all_close(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8, bool equal_nan = false,
               CallSite = {});
/// Same shape, dtype and bits.
bool bit_equal(Argument a, const Tensor& b);
/// max |a - b|, 0 for empty tensors; NaN where either has one. Throws ShapeError for different shapes.
double max_difference(Argument a, const Tensor& b);
/// ||a - b|| / ||b|| in f64, 0 for equal tensors; NaN never passes a comparison. Throws ShapeError for different
/// shapes.
double relative_error(Argument a, const Tensor& b);

/// What a check found: a bool and a text for any test framework. Assertions print the text by themselves:
/// EXPECT_TRUE(verdict) of GoogleTest, CHECK(verdict) of Catch2 and of doctest.
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

/// |a - b| <= absolute + relative * |b|. What is left out is by dtype, that of the coarser operand, and that of
/// PyTorch's assert_close(): f64 1e-7 and 1e-7, f32 1e-5 and 1.3e-6, f16 1e-5 and 1e-3, bf16 1e-5 and 1.6e-2 (absolute
/// and relative), 0 for integers.
struct NearOptions {
  std::optional<double> absolute = {}, relative = {};
  bool equal_nan = false;
};

/// all_close() that says what is not: how many elements, and of the worst one where it is, both numbers and their
/// difference. Fails, and does not throw, where a tensor is undefined or on sim, where there are no numbers, and where
/// shapes differ; dtypes may differ.
Verdict tensors_near(const Tensor& a, const Tensor& b, const NearOptions& options = {}, CallSite = {});
/// |a - b| <= absolute.
Verdict tensors_near(const Tensor& a, const Tensor& b, double absolute, CallSite = {});

}  // namespace poolgrad
