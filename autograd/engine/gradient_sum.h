// The sum of gradients that arrive one by one.
#pragma once

#include <functional>

#include "autograd/engine/node.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Adds gradients of one shape and dtype in the order of the calls. f32 and f64 need one tensor. For half types, the
/// second and later gradients are also summed in f32, four bytes an element, so that small addends are not lost: 600
/// times 1 is 600 in bf16. value() is that sum, rounded once.
class GradientSum {
 public:
  const Tensor& value() const { return value_; }
  /// Starts over with `value`, which may be undefined.
  void reset(Tensor value = {});
  /// Adds a gradient, recorded while grad mode is on. `is_last` avoids an f32 sum if this is only the second addend.
  /// With `in_place`, value() stays the same tensor if it is contiguous and has no gradient. If other code writes an
  /// element of value(), the sum continues from the written value.
  void add(Tensor gradient, bool is_last = false, bool in_place = false);

 private:
  Tensor value_, exact_;  // exact_: in f32; undefined if value_ is the whole sum
};

/// GradientSum::add() for a sum whose two tensors the caller keeps; `exact` may stay undefined.
void accumulate_gradient(Tensor& value, Tensor& exact, Tensor gradient, bool is_last, bool in_place = false);

/// Adds `gradient` to `part(sum)`, a view of a sum that may be written over, and returns true. Takes time linear in the
/// part, but for the first of several in half types. Returns false, doing nothing, if there is no such sum.
bool accumulate_into_part(const RunningSum& sum, const Tensor& gradient,
                          const std::function<Tensor(const Tensor&)>& part);

/// Returns a + b, on the tape while grad mode is on. Otherwise reuses the memory of a or b if it has no other owner.
Tensor add_gradients(Tensor a, Tensor b);

}  // namespace poolgrad
