#include "nn/rms_norm.h"

#include "autograd/cast.h"
#include "autograd/norms.h"

namespace poolgrad::nn {

RMSNorm::RMSNorm(std::int64_t width, double epsilon, const ParameterOptions& parameters)
    : weight_(constant_parameter("weight", {width}, 1.0, parameters)), epsilon_(epsilon) {}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, to(weight_, x.dtype()), epsilon_); }

}  // namespace poolgrad::nn
