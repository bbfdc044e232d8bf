#include "autograd/engine/function.h"

#include <fmt/format.h>

#include <utility>

#include "allocator/error.h"

namespace poolgrad {

Tensor FunctionContext::saved(int i) const {
  if (i < 0 || static_cast<std::size_t>(i) >= saved_.size())
    throw IndexError(fmt::format("[{}] backward reads saved tensor {} of {}",
                                 Node::current() == nullptr ? "function" : Node::current()->name(), i, saved_.size()));
  return saved_[static_cast<std::size_t>(i)].unpack();
}

bool FunctionContext::needs(int i) const {
  if (i < 0 || static_cast<std::size_t>(i) >= needed_.size())
    throw IndexError(fmt::format("[{}] needs() reads input {} of {}",
                                 Node::current() == nullptr ? "function" : Node::current()->name(), i, needed_.size()));
  return needed_[static_cast<std::size_t>(i)] != 0;
}

namespace {

/// Adapts a function with one output.
class SingleOutput : public MultiFunction {
 public:
  explicit SingleOutput(std::shared_ptr<Function> function) : function_(std::move(function)) {}
  std::vector<Tensor> forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
    return {function_->forward(context, inputs)};
  }
  Gradients backward(FunctionContext& context, const Gradients& gradients) override {
    return function_->backward(context, gradients[0]);
  }

 private:
  const std::shared_ptr<Function> function_;
};

/// Returns `tensor` as saved by a node with `outputs`, which are aliases of the tensors `made` by forward.
SavedTensor saved_beside(const Tensor& tensor, const std::vector<Tensor>& made, const std::vector<Tensor>& outputs) {
  for (std::size_t i = 0; i < made.size(); ++i)
    if (tensor.defined() && tensor.is_same(made[i])) return SavedTensor::output(outputs[i], static_cast<int>(i));
  return SavedTensor(tensor);
}

}  // namespace

std::vector<Tensor> apply(const std::string& name, std::shared_ptr<MultiFunction> function,
                          const std::vector<Tensor>& inputs) {
  if (!function) throw ValueError(fmt::format("[{}] there is no function to apply", name));
  const bool recording = wants_gradient(inputs);
  auto context = std::make_shared<FunctionContext>();
  for (const Tensor& input : inputs) context->needed_.push_back(recording && input.defined() && input.requires_grad());
  std::vector<Tensor> made;
  {
    NoGradGuard guard;
    made = function->forward(*context, inputs);
  }
  if (made.empty()) throw Error(fmt::format("[{}] forward returned no tensor", name));
  for (const Tensor& output : made)
    if (!output.defined()) throw Error(fmt::format("[{}] forward returned an undefined tensor", name));
  const std::vector<Tensor> pending = std::exchange(context->pending_, {});
  if (!recording) return made;

  // Records aliases, not the returned tensors. An input among them would get a new history; a tensor kept by the
  // function would keep the function's own graph alive.
  std::vector<Tensor> outputs;
  for (const Tensor& output : made) outputs.push_back(output.detach());
  for (const Tensor& tensor : pending) context->saved_.push_back(saved_beside(tensor, made, outputs));
  made.clear();
  const auto count = static_cast<int>(outputs.size());
  record(name, inputs, outputs, [function = std::move(function), context, count](const BackwardCall& call) {
    FunctionContext now = *context;  // a copy, since passes over one graph may run at the same time
    for (std::size_t i = 0; i < now.needed_.size(); ++i) now.needed_[i] = call.needs(static_cast<int>(i));
    Gradients gradients;
    for (int i = 0; i < count; ++i) gradients.push_back(call.gradient(i));
    return function->backward(now, gradients);
  });
  return outputs;
}

Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs) {
  const std::shared_ptr<MultiFunction> adapted =
      function ? std::make_shared<SingleOutput>(std::move(function)) : nullptr;
  return apply(name, adapted, inputs)[0];
}

}  // namespace poolgrad
