// Compares analytic gradients with central differences. For unit tests of gradients: ours and yours.
//
//   Tensor x = randn({3, 4}, {.dtype = DType::f64}).set_requires_grad();
//   EXPECT_TRUE(gradcheck([](const Tensor& a) { return tanh(a); }, x));  // prints the whole report
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/compare.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Defaults fit the coarsest dtype of checked inputs and outputs. f64 has a step of 1e-6, a relative tolerance of 1e-5
/// and an absolute one of 1e-7. f32, f16 and bf16, of unit roundoff u, have u^(1/3), 4 u^(2/3) and u^(2/3). The
/// absolute default is multiplied by the largest numeric derivative of the input where that is below 1: it hides no
/// small gradient. In f64 the step follows the function: an element that does not agree is compared again with the step
/// whose neighbors confirm it best, from 1e-16 to 1. In f32, f16 and bf16 the rounding of each output that takes part
/// is allowed for. An output takes part if the step moves it, or if it depends on the element by the tape. For an
/// element that does not agree, the third derivative is extrapolated away and the rounding inside the function is
/// measured.
struct GradcheckOptions {
  std::optional<double> epsilon = {};   // step of the central difference, times max(1, |x|)
  std::optional<double> relative = {};  // |analytic - numeric| <= absolute + relative * |numeric| + rounding
  std::optional<double> absolute = {};
  bool allow_low_precision = false;     // less than f64 is refused otherwise: coarse differences miss small mistakes
  std::uint64_t seed = 0;               // of the random output gradient
  bool allow_unused = false;            // an input on which no output depends is passed over, as in grad()
  std::vector<std::string> names = {};  // of the inputs, for the report: "input 0", "input 1" where left out
};

/// The verdict, and everything needed to find the fault. The text has the worst element, its input and index, analytic
/// and numeric derivative, their ratio, epsilon, whether a kink is near, the operator whose backward disagrees with
/// differences of it alone, and both Jacobians where they are at most 6 x 6.
struct GradcheckReport : Verdict {
  int input = -1;  // of the worst element; -1 where no element is to blame
  Shape index = {};
  double analytic = 0, numeric = 0;
};

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks d<w, f(inputs)>/d inputs for every input that requires grad, w random; integer outputs are passed over.
/// f64 inputs and outputs only (DTypeError otherwise; ValueError if none requires grad, or for options that make no
/// sense). Inputs may be views, also overlapping ones. They may be tensors that `function` holds besides, such as the
/// parameters of a module: elements are moved in place and put back (which advances versions), and `.grad()` is left
/// alone. Fails where it would compare nothing with nothing: no floating output, an input on which no output with
/// elements depends (unless `allow_unused`, or an empty input leaves no output any), a device without arithmetic, and
/// in less than f64 an input whose differences are all within the rounding of the outputs (a gradient of zero passes
/// there with `allow_unused`). Also checks that gradients have the shape of their inputs, that two runs and two
/// backward passes over one graph give equal bits, and that strided and expanded output gradients give the same as
/// dense ones. What `function` throws goes through; an Error of a backward, such as a gradient of the wrong shape, is a
/// verdict.
GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the gradient itself, as a function of the inputs and the output gradient (double backward). Also checks
/// that the gradient is the same with create_graph as without.
GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

/// A function f(x0, ..., x[count - 1]) that gives a tensor or several, in the form above; holds a reference to it.
template <std::size_t count, class F>
TensorFunction tensor_function(F& f) {
  return [&f](const std::vector<Tensor>& x) -> std::vector<Tensor> {
    const auto outputs = [&]<std::size_t... i>(std::index_sequence<i...>) { return f(x[i]...); };
    if constexpr (std::same_as<decltype(outputs(std::make_index_sequence<count>())), Tensor>)
      return {outputs(std::make_index_sequence<count>())};
    else
      return outputs(std::make_index_sequence<count>());
  };
}
/// Whether F is called with that many tensors. Modules are not meant: nn/gradcheck.h has theirs.
template <class F, class... Inputs>
concept FunctionOfTensors = sizeof...(Inputs) > 0 && (std::same_as<Inputs, Tensor> && ...) && !requires(const F& f) {
  f.named_parameters();
}
&&std::invocable<F&, const Inputs&...>;

/// The same for f(x0, x1, ...), which gives a tensor or several. Options follow up to three tensors.
template <class F, class... Inputs>
requires FunctionOfTensors<std::remove_reference_t<F>, Inputs...> GradcheckReport gradcheck(F&& f,
                                                                                            const Inputs&... inputs) {
  return gradcheck(tensor_function<sizeof...(Inputs)>(f), {inputs...});
}
template <class F, class... Inputs>
requires FunctionOfTensors<std::remove_reference_t<F>, Inputs...> GradcheckReport
gradgradcheck(F&& f, const Inputs&... inputs) {
  return gradgradcheck(tensor_function<sizeof...(Inputs)>(f), {inputs...});
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor> GradcheckReport
gradcheck(F&& f, const Tensor& a, const GradcheckOptions& options) {
  return gradcheck(tensor_function<1>(f), {a}, options);
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor, Tensor> GradcheckReport
gradcheck(F&& f, const Tensor& a, const Tensor& b, const GradcheckOptions& options) {
  return gradcheck(tensor_function<2>(f), {a, b}, options);
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor, Tensor, Tensor> GradcheckReport
gradcheck(F&& f, const Tensor& a, const Tensor& b, const Tensor& c, const GradcheckOptions& options) {
  return gradcheck(tensor_function<3>(f), {a, b, c}, options);
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor> GradcheckReport
gradgradcheck(F&& f, const Tensor& a, const GradcheckOptions& options) {
  return gradgradcheck(tensor_function<1>(f), {a}, options);
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor, Tensor> GradcheckReport
gradgradcheck(F&& f, const Tensor& a, const Tensor& b, const GradcheckOptions& options) {
  return gradgradcheck(tensor_function<2>(f), {a, b}, options);
}
template <class F>
requires FunctionOfTensors<std::remove_reference_t<F>, Tensor, Tensor, Tensor> GradcheckReport
gradgradcheck(F&& f, const Tensor& a, const Tensor& b, const Tensor& c, const GradcheckOptions& options) {
  return gradgradcheck(tensor_function<3>(f), {a, b, c}, options);
}

}  // namespace poolgrad
