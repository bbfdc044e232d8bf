// GoogleTest macros for autograd/testing.h. Installed, but not part of poolgrad.h, so that only programs with
// GoogleTest include it. EXPECT_TRUE(gradcheck(...)) and EXPECT_TRUE(check_property(...)) print the whole report
// without it.
#pragma once

#include <gtest/gtest.h>

#include "autograd/testing.h"

/// EXPECT_GRADCHECK(f, x, y) checks the gradient of f(x, y) by finite differences, for every input that requires grad.
/// With a module in place of f, also checks all its parameters. EXPECT_GRADCHECK(f, {x, y}, {.epsilon = 1e-4}) passes
/// options, for a TensorFunction. More text may be streamed in. ASSERT_ ends the test.
#define EXPECT_GRADCHECK(...) POOLGRAD_CHECK_("gradcheck", gradcheck(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_GRADCHECK(...) POOLGRAD_CHECK_("gradcheck", gradcheck(__VA_ARGS__), #__VA_ARGS__, FAIL())
/// The same for the second derivative.
#define EXPECT_GRADGRADCHECK(...) \
  POOLGRAD_CHECK_("gradgradcheck", gradgradcheck(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_GRADGRADCHECK(...) POOLGRAD_CHECK_("gradgradcheck", gradgradcheck(__VA_ARGS__), #__VA_ARGS__, FAIL())
/// EXPECT_TENSOR_NEAR(a, b) has tolerances by dtype. (a, b, 1e-3) requires |a - b| <= 1e-3. (a, b, {.relative = 1e-3})
/// keeps the other tolerances by dtype. See tensors_near().
#define EXPECT_TENSOR_NEAR(...) POOLGRAD_CHECK_("tensors_near", tensors_near(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_TENSOR_NEAR(...) POOLGRAD_CHECK_("tensors_near", tensors_near(__VA_ARGS__), #__VA_ARGS__, FAIL())

/// The switch keeps a following else of the caller from binding to this if.
#define POOLGRAD_CHECK_(name, verdict, operands, failure)                  \
  switch (0)                                                               \
  case 0:                                                                  \
  default:                                                                 \
    if (const ::poolgrad::Verdict poolgrad_verdict_ = ::poolgrad::verdict) \
      ;                                                                    \
    else                                                                   \
      failure << name "(" operands ")\n" << poolgrad_verdict_.text << "\n"
