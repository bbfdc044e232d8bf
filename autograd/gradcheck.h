// Compares analytic gradients with central differences. For unit tests of gradients: ours and yours.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

struct GradcheckOptions {
  double epsilon = 1e-6;   // step of the central difference
  double relative = 1e-5;  // |analytic - numeric| <= absolute + relative * |numeric|
  double absolute = 1e-7;
  bool allow_low_precision = false;  // f32 inputs are refused otherwise: differences of f32 mislead
  std::uint64_t seed = 0;            // of the random output gradient
};

/// The verdict, and everything needed to find the fault.
struct GradcheckReport {
  bool passed = true;
  std::string text;  // readable: worst element, input, index, analytic, numeric, epsilon, whether near a kink
  int input = -1;    // of the worst element
  Shape index;
  double analytic = 0, numeric = 0;
  explicit operator bool() const { return passed; }
};

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks d<w, f(inputs)>/d inputs for every input that requires grad, w random. f64 inputs only (DTypeError
/// otherwise). Also checks that two backward runs give equal bits, that gradients have the shape of their inputs, and
/// that non-contiguous output gradients give the same.
GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the gradient itself, as a function of the inputs and the output gradient (double backward).
GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

}  // namespace poolgrad
