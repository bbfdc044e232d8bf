// Records an operator on the tape. Every differentiable operator has the steps: check, allocate, compute, record,
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

/// Returns whether grad mode is on and an input requires a gradient.
bool wants_gradient(std::initializer_list<std::reference_wrapper<const Tensor>> inputs);
bool wants_gradient(std::span<const Tensor> inputs);

/// Makes the node and connects it. The floating `outputs`, fresh tensors or views, then require a gradient. `backward`
/// must hold tensors only as SavedTensors, so that a SavedTensorPolicy controls all memory of a graph. Outputs need
/// SavedTensor::output(). In anomaly mode, checks the outputs here and the gradients in the engine.
void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            BackwardFunction backward);
/// The same for an operator with outputs that a policy may drop and recompute. Views need no recipe.
void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            const Recipe& recipe, BackwardFunction backward);

/// Returns a recipe from compute(a), compute(a, b) or compute(a, b, c) with one output, or from compute of all inputs
/// as a vector, which may return a vector. Returns an empty recipe if no policy is in force.
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

// Second derivatives of fused operators come from the operator's definition in primitive operators. So no fused kernel
// needs a hand-written second derivative.

/// For backward functions. Returns the gradients of sum_i <gradients_i, definition(inputs)_i> with respect to the
/// inputs, one per input; undefined if an input requires none. With grad mode on (create_graph), reruns the definition
/// on the inputs and records its gradient. `inputs` are the saved inputs; undefined and integer inputs pass unchanged.
/// An undefined gradient is an output that did not contribute.
Gradients differentiable_gradients(const Definition& definition, const std::vector<Tensor>& inputs,
                                   const Gradients& gradients);

}  // namespace poolgrad
