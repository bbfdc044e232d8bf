#include "autograd/engine/record.h"

#include <utility>

#include "autograd/engine/anomaly.h"
#include "autograd/engine/tape_record.h"

namespace poolgrad {

bool wants_gradient(std::initializer_list<std::reference_wrapper<const Tensor>> inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

bool wants_gradient(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

void record(std::string name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            BackwardFunction backward) {
  if (anomaly_mode_enabled()) check_outputs(name, inputs, outputs);
  const std::shared_ptr<Node> node =
      Node::make(std::move(name), inputs, static_cast<int>(outputs.size()), std::move(backward));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    Tensor output = outputs[i];  // a handle: the record belongs to the tensor behind it
    output.set_grad_record(std::make_shared<TapeRecord>(Edge{node, static_cast<int>(i)}));
  }
}

}  // namespace poolgrad
