// How fused operators become twice differentiable: their second derivatives come from the operator's definition,
// written in primitive operators, so that no fused kernel needs a hand-written second derivative.
#pragma once

#include <functional>
#include <vector>

#include "autograd/engine/node.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// An operator written with differentiable operators; the same inputs and outputs as the fused one.
using Definition = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// For backward functions: the gradients of sum_i <gradients_i, definition(inputs)_i> with respect to the inputs, one
/// per input, undefined where an input requires none. Differentiable if grad mode is on (create_graph): the definition
/// is run again on the inputs and its gradient is put on the tape. `inputs` are the saved inputs (undefined and integer
/// ones are passed on as they are); an undefined gradient is an output that did not contribute.
Gradients differentiable_gradients(const Definition& definition, const std::vector<Tensor>& inputs,
                                   const Gradients& gradients);

}  // namespace poolgrad
