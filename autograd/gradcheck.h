// Compares analytic gradients with central differences. For unit tests of gradients: ours and yours.
//
//   Tensor x = randn({3, 4}, {.dtype = DType::f64}).set_requires_grad();
//   const GradcheckReport report = gradcheck([](const auto& inputs) { return std::vector{tanh(inputs[0])}; }, {x});
//   EXPECT_TRUE(report) << report.text;
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

struct GradcheckOptions {
  double epsilon = 1e-6;   // step of the central difference, times max(1, |x|)
  double relative = 1e-5;  // |analytic - numeric| <= absolute + relative * |numeric|
  double absolute = 1e-7;
  bool allow_low_precision = false;  // f32 inputs are refused otherwise: differences of f32 mislead
  std::uint64_t seed = 0;            // of the random output gradient
};

/// The verdict, and everything needed to find the fault.
struct GradcheckReport {
  bool passed = true;
  std::string text;  // readable: worst element, input, index, analytic, numeric, epsilon, whether near a kink
  int input = -1;    // of the worst element; -1 where no element is to blame
  Shape index;
  double analytic = 0, numeric = 0;
  explicit operator bool() const { return passed; }
};

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks d<w, f(inputs)>/d inputs for every input that requires grad, w random; integer outputs are passed over.
/// f64 inputs only (DTypeError otherwise; ValueError if none requires grad). Inputs may be views, also overlapping
/// ones; neither they nor their `.grad()` are written. Also checks that gradients have the shape of their inputs, that
/// two runs and two backward passes over one graph give equal bits, and that strided and expanded output gradients give
/// the same as dense ones. What `function` throws goes through.
GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the gradient itself, as a function of the inputs and the output gradient (double backward). Also checks
/// that the gradient is the same with create_graph as without.
GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

}  // namespace poolgrad
