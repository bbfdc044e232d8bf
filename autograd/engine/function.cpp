#include "autograd/engine/function.h"

#include <fmt/format.h>

#include <utility>

#include "allocator/error.h"

namespace poolgrad {

Tensor FunctionContext::saved(int i) const {
  if (i < 0 || static_cast<std::size_t>(i) >= saved_.size())
    throw IndexError(fmt::format("[{}] backward asks for saved tensor {} of {}",
                                 Node::current() == nullptr ? "function" : Node::current()->name(), i, saved_.size()));
  return saved_[static_cast<std::size_t>(i)].unpack();
}

bool FunctionContext::needs(int i) const {
  if (i < 0 || static_cast<std::size_t>(i) >= needed_.size())
    throw IndexError(fmt::format("[{}] asks whether input {} of {} needs a gradient",
                                 Node::current() == nullptr ? "function" : Node::current()->name(), i, needed_.size()));
  return needed_[static_cast<std::size_t>(i)] != 0;
}

Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs) {
  const bool recording = wants_gradient(inputs);
  auto context = std::make_shared<FunctionContext>();
  for (const Tensor& input : inputs) context->needed_.push_back(recording && input.defined() && input.requires_grad());
  Tensor out;
  {
    NoGradGuard guard;
    out = function->forward(*context, inputs);
  }
  if (!out.defined()) throw Error(fmt::format("[{}] forward returned an undefined tensor", name));
  const std::vector<Tensor> pending = std::exchange(context->pending_, {});
  if (!recording) return out;

  // Recorded on an alias: the tensor itself may exist elsewhere, as an input, whose history would be rewritten, or kept
  // by the function, which its own history would then keep alive.
  const Tensor made = std::exchange(out, out.detach());
  for (const Tensor& tensor : pending)
    context->saved_.push_back(tensor.defined() && tensor.is_same(made) ? SavedTensor::output(out)
                                                                       : SavedTensor(tensor));
  record(name, inputs, {out}, [function = std::move(function), context](const BackwardCall& call) {
    FunctionContext now = *context;  // passes over one graph may run at the same time
    for (std::size_t i = 0; i < now.needed_.size(); ++i) now.needed_[i] = call.needs(static_cast<int>(i));
    return function->backward(now, call.gradient());
  });
  return out;
}

}  // namespace poolgrad
