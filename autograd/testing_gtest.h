// GoogleTest's forms of autograd/testing.h. Installed, but no part of poolgrad.h: who includes this has GoogleTest.
// EXPECT_TRUE(gradcheck(...)) and EXPECT_TRUE(check_property(...)) print the whole report without it.
#pragma once

#include <gtest/gtest.h>

#include "autograd/testing.h"

/// EXPECT_GRADCHECK(f, x, y): f(x, y) has the gradient that differences give, for every input that requires grad; with
/// a module in place of f, for all its parameters too; EXPECT_GRADCHECK(f, {x, y}, {.epsilon =
/// 1e-4}): with options, for a TensorFunction. More may be streamed in. ASSERT_ ends the test.
#define EXPECT_GRADCHECK(...) POOLGRAD_CHECK_("gradcheck", gradcheck(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_GRADCHECK(...) POOLGRAD_CHECK_("gradcheck", gradcheck(__VA_ARGS__), #__VA_ARGS__, FAIL())
/// The same for the second derivative.
#define EXPECT_GRADGRADCHECK(...) \
  POOLGRAD_CHECK_("gradgradcheck", gradgradcheck(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_GRADGRADCHECK(...) POOLGRAD_CHECK_("gradgradcheck", gradgradcheck(__VA_ARGS__), #__VA_ARGS__, FAIL())
/// EXPECT_TENSOR_NEAR(a, b) with tolerances by dtype, (a, b, 1e-3): |a - b| <= 1e-3, (a, b, {.relative = 1e-3}): the
/// others by dtype. See tensors_near().
#define EXPECT_TENSOR_NEAR(...) POOLGRAD_CHECK_("tensors_near", tensors_near(__VA_ARGS__), #__VA_ARGS__, ADD_FAILURE())
#define ASSERT_TENSOR_NEAR(...) POOLGRAD_CHECK_("tensors_near", tensors_near(__VA_ARGS__), #__VA_ARGS__, FAIL())

/// The switch keeps an else of the user's from being taken for this one's.
#define POOLGRAD_CHECK_(name, verdict, operands, failure)                  \
  switch (0)                                                               \
  case 0:                                                                  \
  default:                                                                 \
    if (const ::poolgrad::Verdict poolgrad_verdict_ = ::poolgrad::verdict) \
      ;                                                                    \
    else                                                                   \
      failure << name "(" operands ")\n" << poolgrad_verdict_.text << "\n"
