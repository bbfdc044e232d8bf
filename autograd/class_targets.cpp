#include "autograd/class_targets.h"

#include <limits>

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/cast.h"
#include "autograd/indexing.h"
#include "autograd/reductions.h"
#include "autograd/rows.h"
#include "autograd/unary.h"
#include "tensor/creation.h"

namespace poolgrad {

ClassTargets::ClassTargets(const char* op, const Tensor& targets, std::int64_t classes,
                           const CrossEntropyOptions& options, Operands operands) {
  check_dtype(op, targets, DType::i64, "targets must be i64", operands);
  if (!(options.label_smoothing >= 0.0 && options.label_smoothing <= 1.0))
    fail<ValueError>(op, "label smoothing is outside [0, 1]", operands);
  rows = dense(targets);
  counted = not_equal(rows, full({}, static_cast<double>(options.ignore_index), rows.options()));
  safe = where(counted, rows, zeros({}, rows.options()));
  check_index_range(op, "target", safe, classes);
}

Tensor ClassTargets::inverse_count(DType dtype) const {
  return reciprocal(clamp(to(sum(counted), dtype), 1.0, std::numeric_limits<double>::infinity()));
}

}  // namespace poolgrad
