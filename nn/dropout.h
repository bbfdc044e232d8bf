// Dropout as a module.
#pragma once

#include "nn/module.h"

namespace poolgrad::nn {

/// In training mode zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p); otherwise, and
/// for p == 0, the identity. Draws from `generator`, which must outlive the module.
class Dropout : public Layer {
 public:
  /// Throws ValueError for p outside [0, 1).
  explicit Dropout(double p, Generator& generator = default_generator());

  Tensor forward(const Tensor& x) override;

 private:
  double p_;
  Generator* generator_;
};

}  // namespace poolgrad::nn
