// gradcheck() of a module: its inputs and all its parameters in one call.
//
//   nn::Linear layer(4, 3, {}, {.dtype = DType::f64});
//   EXPECT_TRUE(gradcheck(layer, x));
#pragma once

#include <concepts>
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

/// The same of module.forward(inputs...), which gives a tensor or several.
template <std::derived_from<nn::Module> M, std::same_as<Tensor>... Inputs>
GradcheckReport gradcheck(M& module, const Inputs&... inputs) {
  const auto forward = [&module](const Inputs&... x) { return module.forward(x...); };
  return gradcheck(module, tensor_function<sizeof...(Inputs)>(forward), {inputs...});
}
template <std::derived_from<nn::Module> M, std::same_as<Tensor>... Inputs>
GradcheckReport gradgradcheck(M& module, const Inputs&... inputs) {
  const auto forward = [&module](const Inputs&... x) { return module.forward(x...); };
  return gradgradcheck(module, tensor_function<sizeof...(Inputs)>(forward), {inputs...});
}

}  // namespace poolgrad
