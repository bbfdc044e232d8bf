// Runs the tape backwards: iterative, deterministic (the ready node with the largest sequence number first),
// re-entrant.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace poolgrad {

struct BackwardOptions {
  bool retain_graph = false;  // keep the saved tensors for another backward
  bool create_graph = false;  // make the gradients differentiable; implies retain_graph
};

/// Accumulates into the `.grad()` of every leaf that contributed to `outputs`. `gradients` pairs with `outputs`;
/// undefined entries are 1 for one-element outputs. Throws ShapeError, or Error if no output requires grad.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients = {},
              BackwardOptions options = {});

/// The gradients of sum_i <gradients_i, outputs_i> with respect to `inputs`, without touching any `.grad()`. An input
/// that did not contribute gets an undefined tensor if `allow_unused`, else Error names its position.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {}, BackwardOptions options = {},
                         bool allow_unused = false);

/// Calls `hook` with the gradient of `tensor` when it is known (before accumulation, for a leaf); a defined result
/// replaces the gradient.
void register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

/// While alive, every operator's output and every gradient is searched for NaN and infinity; the first one found throws
/// Error naming the operator, the shapes of its inputs and the first bad index.
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

}  // namespace poolgrad
