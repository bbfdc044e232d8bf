// Runs the tape backwards: iterative, deterministic (the ready node with the largest sequence number first),
// re-entrant.
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

/// Accumulates into the `.grad()` of every leaf that contributed to `outputs`. `gradients` pairs with `outputs`;
/// undefined entries are 1 for one-element outputs; outputs that require no gradient are passed over. Throws
/// ShapeError, DTypeError or DeviceError for a gradient unlike its output, and Error if no output requires grad or the
/// graph was freed before. Allocations are tagged Category::gradient. If an operator throws, leaves that were visited
/// before keep their gradients, and the graph is freed as after success.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients = {},
              BackwardOptions options = {}, CallSite = {});

/// The gradients of sum_i <gradients_i, outputs_i> with respect to `inputs`, leaves or not, without touching any
/// `.grad()`; only nodes on the way to them are run (and freed). An input that did not contribute gets an undefined
/// tensor if `allow_unused`, else Error names its position.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {}, BackwardOptions options = {},
                         bool allow_unused = false, CallSite = {});
/// grad() for outputs that may require no gradient: undefined for an input that did not contribute.
std::vector<Tensor> contributions(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                  const std::vector<Tensor>& gradients, BackwardOptions options, CallSite = {});
/// The same with zeros there.
std::vector<Tensor> gradients_or_zeros(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                       const std::vector<Tensor>& gradients, BackwardOptions options, CallSite = {});

/// Calls `hook` with the gradient of `tensor` when it is complete (before accumulation, for a leaf); a defined result,
/// of the same shape, dtype and device, replaces the gradient. Hooks run in the order of registration, with grad mode
/// off unless create_graph is on. A hook on a leaf lives as long as the tensor, else as long as the graph, or until its
/// handle removes it. One that holds its own tensor keeps it alive: remove it, or let it hold
/// std::weak_ptr(tensor.grad_record()). Throws Error if the tensor requires no gradient.
HookHandle register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

/// Calls `hook` with the accumulated gradient of a leaf when what this backward pass has to add to it has been added:
/// once a pass, whatever the number of uses. Nodes that read the leaf have run by then, so that the hook may take an
/// optimiser's step and drop the gradient (Optimizer::step(), zero_grad()), unless the graph is retained. Hooks run in
/// the order of registration, live as long as the leaf and are removed by their handle; grad(), which accumulates
/// nothing, does not run them. Throws Error for a tensor that is no leaf or requires no gradient.
HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> hook);

/// Calls `callback`, which must not throw, when the outermost pass that runs on this thread has ended, be it by an
/// exception; at once where none runs.
void at_end_of_backward(std::function<void()> callback);

// Anomaly mode: finds the operator that made the first NaN.

/// While alive, every recorded operator's output is searched for NaN and +infinity (-infinity is a legal mask) and
/// every gradient for NaN and infinities; the first one found throws Error naming the operator, the shapes of its
/// inputs and the first bad index. Per thread; slow.
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
