#include "autograd/rope.h"

#include "allocator/error.h"
#include "autograd/check.h"
#include "autograd/record.h"
#include "kernels/rows.h"

namespace poolgrad {
namespace {

Tensor rotated(const Tensor& x, std::int64_t position, double base, bool inverse) {
  const Tensor input = x.strides().back() == 1 ? x : x.copy();
  Tensor out = Tensor::empty_like(x);
  kernels::rope(current_stream(x.device()), out.view(), input.view(), position, base, inverse);
  if (wants_gradient({x}))
    record("rope", {x}, {out}, [position, base, inverse](const BackwardCall& call) -> Gradients {
      return {rotated(call.gradient(), position, base, !inverse)};
    });
  return out;
}

}  // namespace

Tensor rope(const Tensor& x, std::int64_t position, double base, CallSite) {
  check_floating("rope", {{"x", x}});
  if (x.rank() != 4 || x.shape()[3] % 2 != 0) fail<ShapeError>("rope", "needs (B, T, H, D) with even D", {{"x", x}});
  if (!(base > 0.0)) fail<ValueError>("rope", "the base must be positive", {{"x", x}});
  return rotated(x, position, base, /*inverse=*/false);
}

}  // namespace poolgrad
