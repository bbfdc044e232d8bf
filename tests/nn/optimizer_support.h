// A parameter of three elements and its gradients, for the tests of optimizers.
#pragma once

#include <initializer_list>

#include "tensor/creation.h"
#include "tensor/tensor.h"

namespace poolgrad::nn::optimizer_support {

inline Tensor vector(std::initializer_list<double> values, DType dtype = DType::f64) {
  const Tensor source = from_data<double>(values, {static_cast<std::int64_t>(values.size())});
  return Tensor::empty(source.shape(), {.dtype = dtype}).copy_from(source);
}

inline Tensor start(DType dtype = DType::f64) { return vector({1.0, -2.0, 0.5}, dtype).set_requires_grad(); }

/// The gradient of step s = 0, 1, 2.
inline Tensor gradient(int s, double scale = 1.0) {
  return vector({0.1 * (s + 1) * scale, -0.3 * scale, (0.7 - 0.5 * s) * scale});
}

}  // namespace poolgrad::nn::optimizer_support
