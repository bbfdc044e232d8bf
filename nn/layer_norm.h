// LayerNorm as a module.
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace poolgrad::nn {

/// (x - mean) / sqrt(var + epsilon) * weight + bias over the last dimension (Ba et al. 2016). weight starts at 1, bias
/// (optional) at 0.
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(std::int64_t width, bool bias = true, double epsilon = 1e-5,
                     const ParameterOptions& parameters = {});

  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_, bias_;
  double epsilon_;
};

}  // namespace poolgrad::nn
