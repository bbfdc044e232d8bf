#include "nn/layer_norm.h"

#include "autograd/cast.h"
#include "autograd/norms.h"

namespace poolgrad::nn {

LayerNorm::LayerNorm(std::int64_t width, bool bias, double epsilon, const ParameterOptions& parameters)
    : weight_(constant_parameter("weight", {width}, 1.0, parameters)), epsilon_(epsilon) {
  if (bias) bias_ = constant_parameter("bias", {width}, 0.0, parameters);
}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, to(weight_, x.dtype()), bias_.defined() ? to(bias_, x.dtype()) : Tensor(), epsilon_);
}

}  // namespace poolgrad::nn
