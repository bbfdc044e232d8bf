// Adam with decoupled weight decay.
#pragma once

#include <vector>

#include "nn/optimizer.h"

namespace poolgrad::nn {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool decay_matrices_only = false;  // no decay for norms and biases (one-dimensional parameters)
};

/// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, p -= rate * (weight_decay * p + m^ / (sqrt(v^) +
/// epsilon)) with m^ and v^ corrected for the steps that the parameter itself has taken (Loshchilov & Hutter 2019).
/// Moments are in the compute dtype.
class AdamW : public Optimizer {
 public:
  /// Throws ValueError for negative options and betas outside [0, 1).
  explicit AdamW(NamedTensors parameters, AdamWOptions options = {});

 private:
  void update(std::size_t index, std::int64_t step, const Tensor& parameter, const Tensor& gradient,
              double gradient_scale) override;

  AdamWOptions options_;
  std::vector<Tensor> first_, second_;
};

}  // namespace poolgrad::nn
