// The fully connected layer.
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace poolgrad::nn {

struct LinearOptions {
  bool bias = true;
  /// Standard deviation of the initial weight; negative means 1 / sqrt(inputs). The initial bias is 0.
  double deviation = -1.0;
};

/// (..., inputs) -> (..., outputs): x weight^T + bias, with weight (outputs, inputs) and bias (outputs). Parameters are
/// cast to the dtype of x where it differs, so f32 parameters serve bf16 activations.
class Linear : public Layer {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options = {},
         const ParameterOptions& parameters = {});

  Tensor forward(const Tensor& x) override;

  const Tensor& weight() const { return weight_; }
  /// Undefined where there is none.
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_, bias_;
};

}  // namespace poolgrad::nn
