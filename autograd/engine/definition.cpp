#include "autograd/engine/definition.h"

#include "autograd/engine/engine.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad {

Gradients differentiable_gradients(const Definition& definition, const std::vector<Tensor>& inputs,
                                   const Gradients& gradients) {
  const bool create_graph = grad_enabled();
  std::vector<Tensor> seen = inputs, wanted;
  std::vector<std::size_t> positions;
  Gradients result(inputs.size());
  std::vector<Tensor> outputs, weights;
  {
    EnableGradGuard guard;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
      // A view of each input: the derivative is by the operator's argument alone, even where one argument was computed
      // from another. On the tape the view leads back to the input.
      seen[i] = create_graph ? expand(inputs[i], inputs[i].shape()) : inputs[i].detach().set_requires_grad();
      wanted.push_back(seen[i]);
      positions.push_back(i);
    }
    if (wanted.empty()) return result;
    const std::vector<Tensor> values = definition(seen);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!gradients[i].defined() || !values[i].requires_grad()) continue;
      outputs.push_back(values[i]);
      weights.push_back(gradients[i]);
    }
  }
  if (outputs.empty()) return result;
  const std::vector<Tensor> found =
      grad(outputs, wanted, weights, {.retain_graph = create_graph, .create_graph = create_graph}, true);
  for (std::size_t i = 0; i < positions.size(); ++i) result[positions[i]] = found[i];
  return result;
}

}  // namespace poolgrad
