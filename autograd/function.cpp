#include "autograd/function.h"

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

Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs) {
  auto context = std::make_shared<FunctionContext>();
  Tensor out;
  {
    NoGradGuard guard;
    out = function->forward(*context, inputs);
  }
  if (!out.defined()) throw Error(fmt::format("[{}] forward returned an undefined tensor", name));
  const std::vector<Tensor> pending = std::exchange(context->pending_, {});
  if (!wants_gradient(inputs)) return out;

  // Recording on a tensor that exists elsewhere (an input, say) would rewrite its history: record on an alias.
  const Tensor made = out;
  if (out.grad_record() != nullptr) out = out.detach();
  for (const Tensor& input : inputs)
    if (out.is_same(input)) out = out.detach();
  for (const Tensor& tensor : pending)
    context->saved_.push_back(tensor.defined() && tensor.is_same(made) ? SavedTensor::output(out)
                                                                       : SavedTensor(tensor));
  record(name, inputs, {out}, [function = std::move(function), context](const BackwardCall& call) {
    context->call_ = &call;
    return function->backward(*context, call.gradient());
  });
  return out;
}

}  // namespace poolgrad
