// The targets of a classification loss: which count, and checks.
#pragma once

#include "autograd/check.h"
#include "autograd/losses.h"

namespace poolgrad {

struct ClassTargets {
  Tensor rows;     // i64, row-major: what a backward keeps, as a SavedTensor, to make these again
  Tensor counted;  // bool: not ignored
  Tensor safe;     // rows with 0 for those that are ignored

  /// Checks dtype, range (IndexError) and options (ValueError); targets equal to options.ignore_index may be anything.
  ClassTargets(const char* op, const Tensor& targets, std::int64_t classes, const CrossEntropyOptions& options,
               Operands operands);
  /// 1 / number of counted targets, 0-dimensional; 1 where there are none. Computed on the device, without a wait.
  Tensor inverse_count(DType dtype) const;
};

}  // namespace poolgrad
