#include "nn/gradcheck.h"

#include <string>

#include "tensor/generator.h"

namespace poolgrad {
namespace {

/// Runs `check` on the inputs of `function` and the parameters of `module`, which it reads where they lie.
template <class Check>
GradcheckReport check_module(const Check& check, const nn::Module& module, const TensorFunction& function,
                             const std::vector<Tensor>& inputs, GradcheckOptions options) {
  std::vector<Tensor> points = inputs;
  for (std::size_t i = options.names.size(); i < inputs.size(); ++i)
    options.names.push_back("input " + std::to_string(i));
  options.names.resize(inputs.size());
  for (const auto& [name, parameter] : module.named_parameters()) {
    points.push_back(parameter);
    options.names.push_back("parameter " + name);
  }
  RandomLog drawn;
  bool first = true;
  const TensorFunction evaluate = [&](const std::vector<Tensor>& x) {
    const RandomLogGuard guard(drawn, first ? RandomLogGuard::records : RandomLogGuard::replays);
    first = false;
    return function(std::vector<Tensor>(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(inputs.size())));
  };
  return check(evaluate, points, options);
}

}  // namespace

GradcheckReport gradcheck(const nn::Module& module, const TensorFunction& function, const std::vector<Tensor>& inputs,
                          GradcheckOptions options) {
  const auto check = [](const TensorFunction& f, const std::vector<Tensor>& x, const GradcheckOptions& o) {
    return gradcheck(f, x, o);
  };
  return check_module(check, module, function, inputs, std::move(options));
}

GradcheckReport gradgradcheck(const nn::Module& module, const TensorFunction& function,
                              const std::vector<Tensor>& inputs, GradcheckOptions options) {
  const auto check = [](const TensorFunction& f, const std::vector<Tensor>& x, const GradcheckOptions& o) {
    return gradgradcheck(f, x, o);
  };
  return check_module(check, module, function, inputs, std::move(options));
}

}  // namespace poolgrad
