// Anomaly mode: finds the operator that made the first NaN.
#pragma once

#include <string>
#include <vector>

#include "autograd/engine/node.h"
#include "tensor/tensor.h"

namespace poolgrad {

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
