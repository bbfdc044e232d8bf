// Runs the tape backwards: iterative, re-entrant and deterministic. The ready node with the largest sequence number
// runs first.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/engine/node.h"
#include "tensor/tensor.h"

namespace poolgrad {

struct BackwardOptions {
  bool retain_graph = false;  // keep the saved tensors for another backward
  bool create_graph = false;  // make the gradients differentiable; implies retain_graph
};

/// Accumulates into `.grad()` of every leaf that contributed to `outputs`. `gradients` pairs with `outputs`; an
/// undefined entry means 1 for a one-element output. Skips outputs that require no gradient. Allocations are tagged
/// Category::gradient.
/// Throws ShapeError, DTypeError or DeviceError for a gradient that does not match its output, and Error if no output
/// requires a gradient or the graph was freed. If an operator throws, leaves visited before keep their gradients, and
/// the graph is freed as after success.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients = {},
              BackwardOptions options = {}, CallSite = {});

/// Returns the gradients of sum_i <gradients_i, outputs_i> with respect to `inputs`, which need not be leaves. Changes
/// no `.grad()`. Runs (and frees) only nodes on the path to the inputs. An input that did not contribute gets an
/// undefined tensor with `allow_unused`; otherwise throws Error with its position.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {}, BackwardOptions options = {},
                         bool allow_unused = false, CallSite = {});
/// grad() for outputs that may require no gradient. Returns an undefined tensor for an input that did not contribute.
std::vector<Tensor> contributions(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& gradients, BackwardOptions options, CallSite = {});
/// The same with zeros in place of undefined tensors.
std::vector<Tensor> gradients_or_zeros(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                       const std::vector<Tensor>& gradients, BackwardOptions options, CallSite = {});

/// Calls `hook` with the complete gradient of `tensor`, for a leaf before accumulation. A defined result replaces the
/// gradient; it must have the same shape, dtype and device. Hooks run in the order of registration, with grad mode off
/// unless create_graph is on. A hook lives as long as its leaf, or as long as the graph of another tensor, or until its
/// handle removes it. A hook that holds its own tensor keeps it alive: remove the hook, or hold
/// std::weak_ptr(tensor.grad_record()). Throws Error if the tensor requires no gradient.
HookHandle register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

/// Calls `hook` with the accumulated gradient of a leaf once per backward pass, after the last addition. All nodes that
/// read the leaf have run by then. Unless the graph is retained, the hook may therefore take an optimizer step and drop
/// the gradient (Optimizer::step(), zero_grad()). Hooks run in the order of registration, live as long as the leaf, and
/// are removed by their handle. grad() does not run them. Throws Error for a tensor that is not a leaf or requires no
/// gradient.
HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> hook);

/// Calls `callback` at the end of the outermost pass on this thread, also if it ends by an exception. Without a pass,
/// calls it at once. `callback` must not throw.
void at_end_of_backward(std::function<void()> callback);

// Anomaly mode: finds the operator that produced the first NaN.

/// While alive, searches every recorded output for NaN and +infinity, and every gradient for NaN and infinities.
/// -infinity in an output is a legal mask. The first find throws Error with the operator, the shapes of its inputs and
/// the first bad index. Per thread; slow.
class AnomalyMode {
 public:
  AnomalyMode();
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  AnomalyMode& operator=(const AnomalyMode&) = delete;

 private:
  bool previous_;
};
bool anomaly_mode_enabled();

/// Throws Error if an output of operator `name` is NaN or +infinity. Reads nothing on sim.
void check_outputs(const std::string& name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs);
/// Throws Error if a gradient that `node` returned is not finite.
void check_gradients(const Node& node, const Gradients& gradients);

}  // namespace poolgrad
