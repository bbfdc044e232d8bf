// Integer and bool results of operators: every row of docs/reference/operators.md that accepts other dtypes than
// floating ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::testing {

/// All but bool, all eight dtypes, bool alone, or indices (i64) alone.
enum class Takes { numbers, everything, bools, indices };

struct IntegerOperators {
  std::vector<std::string> names;  // of the row
  Takes takes;
  /// Runs each operator once. x and y are matrices of one shape and dtype, with at least 3 rows and 4 columns and small
  /// elements: those of y are 0 to 2.
  std::function<std::vector<Tensor>(const Tensor& x, const Tensor& y)> run;
};

const std::vector<IntegerOperators>& integer_operators();

}  // namespace poolgrad::testing
