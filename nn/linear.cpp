#include "nn/linear.h"

#include <cmath>

#include "autograd/cast.h"
#include "autograd/matmul.h"

namespace poolgrad::nn {

Linear::Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options, const ParameterOptions& parameters) {
  const double deviation = options.deviation < 0
                               ? 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(inputs, 1)))
                               : options.deviation;
  weight_ = normal_parameter("weight", {outputs, inputs}, deviation, parameters);
  if (options.bias) bias_ = constant_parameter("bias", {outputs}, 0.0, parameters);
}

Tensor Linear::forward(const Tensor& x) {
  return linear(x, to(weight_, x.dtype()), bias_.defined() ? to(bias_, x.dtype()) : Tensor());
}

}  // namespace poolgrad::nn
