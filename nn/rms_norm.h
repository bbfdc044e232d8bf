// RMSNorm as a module.
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace poolgrad::nn {

/// x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang & Sennrich 2019). weight starts at 1.
class RMSNorm : public Layer {
 public:
  explicit RMSNorm(std::int64_t width, double epsilon = 1e-6, const ParameterOptions& parameters = {});

  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_;
  double epsilon_;
};

}  // namespace poolgrad::nn
