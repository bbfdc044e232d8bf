// The shared body of elementwise operators of one tensor.
#pragma once

#include "kernels/elementwise.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Which dtypes an elementwise operator takes.
enum class Domain { floating, numbers, any };

/// op(x, a, b), put on the tape under `name` and in traces down to the caller. Throws DTypeError outside the domain
/// (numbers: all but bool).
Tensor record_unary(const char* name, kernels::UnaryOp op, const Tensor& x, double a = 0.0, double b = 0.0,
                    Domain domain = Domain::floating, std::source_location at = std::source_location::current());
/// The same for operators that give bool tensors and carry no gradient.
Tensor unary_test(const char* name, kernels::UnaryOp op, const Tensor& x,
                  std::source_location at = std::source_location::current());

}  // namespace poolgrad
