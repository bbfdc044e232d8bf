#include "autograd/operators/cast.h"

#include "autograd/engine/record.h"
#include "autograd/operators/check.h"

namespace poolgrad {

Tensor to(const Tensor& x, DType dtype, CallSite) {
  check_devices("to", {{"x", x}});
  if (x.dtype() == dtype) return x;
  Tensor out = Tensor::empty(x.shape(), {dtype, x.device()}).copy_from(x.detach());
  if (wants_gradient({x}) && is_floating(dtype))
    record("cast", {x}, {out},
           [before = x.dtype()](const BackwardCall& call) -> Gradients { return {to(call.gradient(), before)}; });
  return out;
}

Tensor to(const Tensor& x, Device device, CallSite) {
  check_devices("to", {{"x", x}});
  if (x.device() == device) return x;
  Tensor out = Tensor::empty(x.shape(), {x.dtype(), device}).copy_from(x.detach());
  if (wants_gradient({x}))
    record("move", {x}, {out},
           [before = x.device()](const BackwardCall& call) -> Gradients { return {to(call.gradient(), before)}; });
  return out;
}

}  // namespace poolgrad
