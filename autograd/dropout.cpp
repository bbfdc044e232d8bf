#include "autograd/dropout.h"

#include "allocator/error.h"
#include "autograd/check.h"
#include "autograd/record.h"
#include "kernels/random.h"

namespace poolgrad {
namespace {

/// Linear in x for a given key, so that its gradient is itself.
Tensor dropped(const Tensor& x, double p, kernels::RandomKey key) {
  Tensor out = Tensor::empty_like(x);
  kernels::dropout(current_stream(x.device()), key, out.view(), x.view(), p);
  if (wants_gradient({x}))
    record("dropout", {x}, {out},
           [p, key](const BackwardCall& call) -> Gradients { return {dropped(call.gradient(), p, key)}; });
  return out;
}

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& generator, CallSite) {
  check_floating("dropout", {{"x", x}});
  if (!(p >= 0.0 && p < 1.0))
    fail<ValueError>("dropout", "probability " + std::to_string(p) + " is outside [0, 1)", {{"x", x}});
  if (p == 0.0) return x;
  return dropped(x, p, generator.take(x.count()));
}

}  // namespace poolgrad
