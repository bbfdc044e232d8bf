// How an operator puts itself on the tape. Every differentiable operator reads: check - allocate - compute - record -
// return.
//
//   Tensor square(const Tensor& x) {
//     Tensor out = Tensor::empty_like(x);
//     kernels::unary(current_stream(x.device()), UnaryOp::square, out.view(), x.view());
//     if (wants_gradient({x}))
//       record("square", {x}, {out}, [x = SavedTensor(x)](const BackwardCall& call) -> Gradients {
//         return {2.0 * call.gradient() * x.unpack()};
//       });
//     return out;
//   }
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/engine/node.h"
#include "autograd/engine/saved_tensor.h"
#include "tensor/grad_mode.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// True if grad mode is on and one of the inputs requires a gradient.
bool wants_gradient(std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
bool wants_gradient(std::span<const Tensor> inputs);

/// Makes the node and connects it: the floating `outputs` (fresh tensors or views) then require grad. `backward` holds
/// tensors as SavedTensors alone, so that a SavedTensorPolicy decides about all that a graph keeps; those of outputs
/// must be made with SavedTensor::output(). In anomaly mode the outputs are checked here and the gradients in the
/// engine.
void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            BackwardFunction backward);
/// The same for an operator whose outputs a policy may drop and compute again. Views need no recipe.
void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            const Recipe& recipe, BackwardFunction backward);

/// The recipe of an operator with one output, compute(a), compute(a, b) or compute(a, b, c) of the inputs, or compute
/// of all of them in a vector, which then may also return a vector. Empty where no policy would look at it.
template <class Compute, class Flops = std::nullptr_t>
Recipe recipe(Compute compute, Flops flops = nullptr) {
  using In = const Tensor&;
  if (SavedTensorPolicy::in_force() == nullptr) return {};
  return {[compute = std::move(compute)](const std::vector<Tensor>& in) -> std::vector<Tensor> {
            if constexpr (std::is_invocable_r_v<std::vector<Tensor>, const Compute&, const std::vector<Tensor>&>) {
              return compute(in);
            } else if constexpr (std::is_invocable_v<const Compute&, In>) {
              return {compute(in[0])};
            } else if constexpr (std::is_invocable_v<const Compute&, In, In>) {
              return {compute(in[0], in[1])};
            } else if constexpr (std::is_invocable_v<const Compute&, In, In, In>) {
              return {compute(in[0], in[1], in[2])};
            } else {
              return {compute(in)};
            }
          },
          std::move(flops)};
}

// How fused operators become twice differentiable: their second derivatives come from the operator's definition,
// written in primitive operators, so that no fused kernel needs a hand-written second derivative.

/// For backward functions: the gradients of sum_i <gradients_i, definition(inputs)_i> with respect to the inputs, one
/// per input, undefined where an input requires none. Differentiable if grad mode is on (create_graph): the definition
/// is run again on the inputs and its gradient is put on the tape. `inputs` are the saved inputs (undefined and integer
/// ones are passed on as they are); an undefined gradient is an output that did not contribute.
Gradients differentiable_gradients(const Definition& definition, const std::vector<Tensor>& inputs,
                                   const Gradients& gradients);

}  // namespace poolgrad
