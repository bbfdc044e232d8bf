// Compares analytic gradients with central differences. For unit tests of gradients: ours and yours.
//
//   Tensor x = randn({3, 4}, {.dtype = DType::f64}).set_requires_grad();
//   const GradcheckReport report = gradcheck([](const auto& inputs) { return std::vector{tanh(inputs[0])}; }, {x});
//   EXPECT_TRUE(report) << report.text;
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

/// What is left out fits the dtype: in f64 a step of 1e-6, 1e-5 and 1e-7; in f32, f16 and bf16, of unit roundoff u, a
/// step of u^(1/3), 4 u^(2/3) and u^(2/3), which is what such a step and its rounding leave of a difference.
struct GradcheckOptions {
  std::optional<double> epsilon = {};   // step of the central difference, times max(1, |x|)
  std::optional<double> relative = {};  // |analytic - numeric| <= absolute + relative * |numeric|, and in f32, f16 and
  std::optional<double> absolute = {};  // bf16 what half a unit in the last place of each output adds
  bool allow_low_precision = false;     // less than f64 is refused otherwise: coarse differences miss small mistakes
  std::uint64_t seed = 0;               // of the random output gradient
  bool allow_unused = false;            // an input on which no output depends is passed over, as in grad()
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
/// ones. They may be tensors that `function` holds besides, such as the parameters of a module: elements are moved in
/// place and put back (which advances versions), and `.grad()` is left alone. Fails where it would compare nothing with
/// nothing: no floating output, an input on which no output depends (unless `allow_unused`), a device without
/// arithmetic. Also checks that gradients have the shape of their inputs, that two runs and two backward passes over
/// one graph give equal bits, and that strided and expanded output gradients give the same as dense ones. What
/// `function` throws goes through.
GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the gradient itself, as a function of the inputs and the output gradient (double backward). Also checks
/// that the gradient is the same with create_graph as without.
GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

}  // namespace poolgrad
