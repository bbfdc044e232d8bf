// Stochastic gradient descent.
#pragma once

#include <vector>

#include "nn/optimizer.h"

namespace poolgrad::nn {

struct SGDOptions {
  double learning_rate = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  // added to the gradient
  bool nesterov = false;
};

/// g' = g + weight_decay * p; b = g' at the parameter's first step, momentum * b + (1 - dampening) * g' afterwards; p
/// -= rate * b, or rate * (g' + momentum * b) with Nesterov's momentum (Sutskever et al. 2013).
class SGD : public Optimizer {
 public:
  /// Throws ValueError for negative options, and for Nesterov without momentum or with dampening.
  explicit SGD(NamedTensors parameters, SGDOptions options = {});

 private:
  void update(std::size_t index, std::int64_t step, const Tensor& parameter, const Tensor& gradient,
              double gradient_scale) override;

  SGDOptions options_;
  std::vector<Tensor> momentum_;  // empty without momentum
};

}  // namespace poolgrad::nn
