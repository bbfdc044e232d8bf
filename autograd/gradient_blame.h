// Explains a wrong gradient in the report of gradcheck: its ratio to the right one, and the operator to blame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "autograd/compared_gradient.h"
#include "autograd/finite_difference.h"
#include "autograd/gradcheck.h"

namespace poolgrad {

/// Moves one element of an input by +-epsilon and compares, for every operator on the path to the outputs, its backward
/// with the differences of its own inputs and outputs: <g, d outputs> = <backward(g), d inputs>, g random. Names the
/// operators that disagree by more than `tolerance`, and inputs that move but require no gradient. Empty where the
/// function records nothing, or records other operators when it is run again.
std::string blamed_operators(const TensorFunction& function, FiniteDifference& difference, std::size_t input,
                             std::int64_t index, double epsilon, double tolerance);

/// analytic / numeric of the worst element of an input of that shape, and the usual mistake that explains it.
std::string describe_ratio(const ComparedGradient& compared, std::size_t worst, const Shape& shape);

}  // namespace poolgrad
