// The sum of gradients that arrive one by one.
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// Adds gradients of one shape and dtype in the order of the calls. In f32 and f64 it is one tensor. From the second of
/// several half-type gradients on it also keeps the sum in f32, four bytes an element, so that small addends are not
/// lost: 600 times 1 is 600 in bf16, too. value() is that sum, rounded once.
class GradientSum {
 public:
  const Tensor& value() const { return value_; }
  /// Starts over with `value`, which may be undefined.
  void reset(Tensor value = {});
  /// Adds a gradient, on the tape while grad mode is on. `is_last` saves the sum in f32. With `in_place`, value() stays
  /// the same tensor if it is contiguous and has no gradient. An element of value() written by others counts from then
  /// on.
  void add(Tensor gradient, bool is_last = false, bool in_place = false);

 private:
  Tensor value_, exact_;  // exact_: in f32, undefined where value_ is the whole sum
};

/// GradientSum::add() for a sum whose two tensors the caller keeps; `exact` may stay undefined.
void accumulate_gradient(Tensor& value, Tensor& exact, Tensor gradient, bool is_last, bool in_place = false);

/// Returns a + b, on the tape while grad mode is on. Otherwise reuses the memory of a or b if it has no other owner.
Tensor add_gradients(Tensor a, Tensor b);

}  // namespace poolgrad
