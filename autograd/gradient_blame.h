// Explains a wrong gradient in the report of gradcheck: its ratio to the correct one, and the operator at fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "autograd/compared_gradient.h"
#include "autograd/finite_difference.h"
#include "autograd/gradcheck.h"

namespace poolgrad {

/// Moves one element of an input by +-epsilon. For every operator on the path to the outputs, compares its backward
/// with the differences of its own inputs and outputs: <g, d outputs> = <backward(g), d inputs> for random g. Returns
/// the operators that disagree by more than `tolerance`, and inputs that move but require no gradient. Returns "" if
/// the function records nothing, or other operators in a second run.
std::string blamed_operators(const TensorFunction& function, FiniteDifference& difference, std::size_t input,
                             std::int64_t index, double epsilon, double tolerance);

/// Returns the ratio analytic / numeric of the worst element of an input of that shape, and the usual mistake that
/// explains it.
std::string describe_ratio(const ComparedGradient& compared, std::size_t worst, const Shape& shape);

}  // namespace poolgrad
