// gradcheck() of a module: its inputs and all its parameters in one call.
//
//   nn::Linear layer(4, 3, {}, {.dtype = DType::f64});
//   EXPECT_TRUE(gradcheck(layer, x));
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "autograd/gradcheck.h"
#include "nn/module.h"

namespace poolgrad {

/// gradcheck() of `function`, which calls `module`, by its inputs and by every parameter of the module that requires
/// grad; the report names them: "parameter mlp.up.weight". Every evaluation draws the same random numbers, so that
/// dropout may be on. Parameters are f64, or options.allow_low_precision; errors are those of gradcheck().
GradcheckReport gradcheck(const nn::Module& module, const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options = {});
/// The same for the second derivatives.
GradcheckReport gradgradcheck(const nn::Module& module, const TensorFunction& function,
                              const std::vector<Tensor>& inputs, GradcheckOptions options = {});

/// A module, or a pointer to one, such as a factory returns.
template <class M>
concept ModuleOrPointer = std::derived_from<std::remove_cvref_t<M>, nn::Module> || requires(M& module) {
  { *module } -> std::convertible_to<nn::Module&>;
};
/// module.forward(x...) in the form of a TensorFunction; holds a reference to the module.
template <std::size_t count, ModuleOrPointer M>
TensorFunction forward_function(M& module) {
  return [&module](const std::vector<Tensor>& x) {
    const auto forward = [&](const auto&... inputs) {
      if constexpr (std::derived_from<std::remove_cvref_t<M>, nn::Module>)
        return module.forward(inputs...);
      else
        return module->forward(inputs...);
    };
    return tensor_function<count>(forward)(x);
  };
}
template <ModuleOrPointer M>
const nn::Module& module_of(M& module) {
  if constexpr (std::derived_from<std::remove_cvref_t<M>, nn::Module>)
    return module;
  else
    return *module;
}

/// The same of module.forward(inputs...), which gives a tensor or several. Options follow up to three tensors.
template <ModuleOrPointer M, std::same_as<Tensor>... Inputs>
GradcheckReport gradcheck(M&& module, const Inputs&... inputs) {
  return gradcheck(module_of(module), forward_function<sizeof...(Inputs)>(module), {inputs...});
}
template <ModuleOrPointer M, std::same_as<Tensor>... Inputs>
GradcheckReport gradgradcheck(M&& module, const Inputs&... inputs) {
  return gradgradcheck(module_of(module), forward_function<sizeof...(Inputs)>(module), {inputs...});
}
template <ModuleOrPointer M>
GradcheckReport gradcheck(M&& module, const Tensor& a, const GradcheckOptions& options) {
  return gradcheck(module_of(module), forward_function<1>(module), {a}, options);
}
template <ModuleOrPointer M>
GradcheckReport gradcheck(M&& module, const Tensor& a, const Tensor& b, const GradcheckOptions& options) {
  return gradcheck(module_of(module), forward_function<2>(module), {a, b}, options);
}
template <ModuleOrPointer M>
GradcheckReport gradcheck(M&& module, const Tensor& a, const Tensor& b, const Tensor& c,
                          const GradcheckOptions& options) {
  return gradcheck(module_of(module), forward_function<3>(module), {a, b, c}, options);
}
template <ModuleOrPointer M>
GradcheckReport gradgradcheck(M&& module, const Tensor& a, const GradcheckOptions& options) {
  return gradgradcheck(module_of(module), forward_function<1>(module), {a}, options);
}
template <ModuleOrPointer M>
GradcheckReport gradgradcheck(M&& module, const Tensor& a, const Tensor& b, const GradcheckOptions& options) {
  return gradgradcheck(module_of(module), forward_function<2>(module), {a, b}, options);
}
template <ModuleOrPointer M>
GradcheckReport gradgradcheck(M&& module, const Tensor& a, const Tensor& b, const Tensor& c,
                              const GradcheckOptions& options) {
  return gradgradcheck(module_of(module), forward_function<3>(module), {a, b, c}, options);
}

}  // namespace poolgrad
