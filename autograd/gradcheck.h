// Compares analytic gradients with central differences, for unit tests of gradients.
//
//   Tensor x = randn({3, 4}, {.dtype = DType::f64}).set_requires_grad();
//   EXPECT_TRUE(gradcheck([](const Tensor& a) { return tanh(a); }, x));  // prints the whole report
//   nn::Linear layer(4, 3, {}, {.dtype = DType::f64});
//   EXPECT_TRUE(gradcheck(layer, x));  // by x and by all parameters
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
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
  bool allow_low_precision = false;     // otherwise refuses less than f64, since coarse differences miss small mistakes
  std::uint64_t seed = 0;               // of the random output gradient
  bool allow_unused = false;            // skips an input on which no output depends, as in grad()
  std::vector<std::string> names = {};  // of the inputs, for the report; default "input 0", "input 1"
};

/// The verdict, with a text that locates the fault. The text has the worst element, its input and index, the analytic
/// and numeric derivative, their ratio, epsilon, and whether a kink is near. It names the operator whose backward
/// disagrees with its own differences, and shows both Jacobians up to 6 x 6.
struct GradcheckReport : Verdict {
  int input = -1;  // of the worst element; -1: no element
  Shape index = {};
  double analytic = 0, numeric = 0;
};

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Checks d<w, f(inputs)>/d inputs for every input that requires grad, with random w. Ignores integer outputs. Throws
/// DTypeError for inputs or outputs that are not f64, and ValueError if no input requires grad or options are invalid.
/// Rethrows the errors of `function`; an Error of a backward pass, such as a gradient of the wrong shape, is a verdict.
///
/// Inputs may be views, even overlapping ones, and tensors that `function` holds, such as the parameters of a module.
/// Elements are moved in place and restored (which advances versions); `.grad()` does not change.
///
/// Fails if there is nothing to compare: no floating output; an input on which no output with elements depends (unless
/// `allow_unused`, or because an empty input leaves all outputs empty); a device without arithmetic. Below f64 it also
/// fails for an input whose differences are all within the rounding of the outputs; with `allow_unused` a gradient of
/// zero passes.
///
/// Also checks that gradients have the shapes of their inputs, that two runs and two backward passes over one graph
/// give equal bits, and that strided and expanded output gradients give the same result as dense ones.
GradcheckReport gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the gradient, as a function of the inputs and the output gradient (double backward). Also checks that
/// create_graph does not change the gradient.
GradcheckReport gradgradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                              GradcheckOptions options = {});

/// Runs gradcheck(), or gradgradcheck() if `twice`, for `function` by its inputs and by the parameters of a module,
/// which it reads in place. The report names parameters: "parameter mlp.up.weight". Every evaluation draws the same
/// random numbers, so dropout may be on.
GradcheckReport check_module(bool twice, const std::vector<std::pair<std::string, Tensor>>& parameters,
                             const TensorFunction& function, const std::vector<Tensor>& inputs,
                             GradcheckOptions options);

/// An nn::Module, and a pointer to one.
template <class M>
concept HasParameters = requires(const M& module) {
  module.named_parameters();
};
template <class M>
concept PointsToParameters = requires(const M& pointer) {
  pointer->named_parameters();
};

/// Checks `function`, which calls `module`, by its inputs and by every parameter that requires grad. Parameters must be
/// f64 unless options.allow_low_precision. Throws the errors of gradcheck().
template <HasParameters M>
GradcheckReport gradcheck(const M& module, const TensorFunction& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {}) {
  return check_module(false, module.named_parameters(), function, inputs, options);
}
template <HasParameters M>
GradcheckReport gradgradcheck(const M& module, const TensorFunction& function, const std::vector<Tensor>& inputs,
                              const GradcheckOptions& options = {}) {
  return check_module(true, module.named_parameters(), function, inputs, options);
}

template <std::size_t>
using OneTensor = const Tensor&;
template <class... Arguments>
constexpr std::size_t tensor_count = (std::size_t{std::same_as<Arguments, Tensor>} + ... + 0);
/// Whether f is a module, a pointer to one, or a function of the tensors among the arguments; options must come last.
template <class F, class... Arguments>
concept Checkable = []<std::size_t... i>(std::index_sequence<i...>) {
  constexpr bool is_tensor[] = {std::same_as<Arguments, Tensor>...};
  return (... && (std::same_as<Arguments, Tensor> || std::same_as<Arguments, GradcheckOptions>)) &&
         std::is_partitioned(std::begin(is_tensor), std::end(is_tensor), std::identity()) &&
         (HasParameters<F> || PointsToParameters<F> || std::invocable<F&, OneTensor<i>...>);
}
(std::make_index_sequence<tensor_count<Arguments...>>());

/// Returns the tensors of f(x...) or module.forward(x...).
template <class F, class... X>
std::vector<Tensor> outputs_of(F& f, const X&... x) {
  const auto call = [&] {
    if constexpr (HasParameters<F>)
      return f.forward(x...);
    else if constexpr (PointsToParameters<F>)
      return f->forward(x...);
    else
      return f(x...);
  };
  if constexpr (std::same_as<decltype(call()), Tensor>)
    return {call()};
  else
    return call();
}
template <bool twice, class F, class... Arguments>
GradcheckReport check_call(F& f, const Arguments&... arguments) {
  const GradcheckOptions defaults;
  const auto all = std::tie(arguments..., defaults);
  const GradcheckOptions& options = std::get<tensor_count<Arguments...>>(all);
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    const std::vector<Tensor> inputs{std::get<i>(all)...};
    const TensorFunction function = [&f](const std::vector<Tensor>& x) { return outputs_of(f, x[i]...); };
    if constexpr (HasParameters<F>)
      return check_module(twice, f.named_parameters(), function, inputs, options);
    else if constexpr (PointsToParameters<F>)
      return check_module(twice, f->named_parameters(), function, inputs, options);
    else
      return twice ? gradgradcheck(function, inputs, options) : gradcheck(function, inputs, options);
  }
  (std::make_index_sequence<tensor_count<Arguments...>>());
}

/// Checks f(x, y, ...) or module.forward(x, y, ...), which returns one tensor or several: gradcheck(f, x, y),
/// gradcheck(f, x, y, {.epsilon = 1e-5}). Braced options may follow at most three tensors, because their type is the
/// template's default argument.
template <class F, class A, class B = GradcheckOptions, class C = GradcheckOptions, class D = GradcheckOptions,
          class... More>
requires Checkable<std::remove_reference_t<F>, A, B, C, D, More...> GradcheckReport
gradcheck(F&& f, const A& a, const B& b = {}, const C& c = {}, const D& d = {}, const More&... more) {
  return check_call<false>(f, a, b, c, d, more...);
}
template <class F, class A, class B = GradcheckOptions, class C = GradcheckOptions, class D = GradcheckOptions,
          class... More>
requires Checkable<std::remove_reference_t<F>, A, B, C, D, More...> GradcheckReport
gradgradcheck(F&& f, const A& a, const B& b = {}, const C& c = {}, const D& d = {}, const More&... more) {
  return check_call<true>(f, a, b, c, d, more...);
}

}  // namespace poolgrad
