// A user's own differentiable operator.
//
//   struct Cube : Function {
//     Tensor forward(Context& context, const std::vector<Tensor>& inputs) override { context.save(inputs[0]); ... }
//     Gradients backward(Context& context, const Tensor& gradient) override { Tensor x = context.saved(0); ... }
//   };
//   Tensor y = apply<Cube>("cube", {x});
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/record.h"

namespace poolgrad {

/// Carries tensors from forward to backward.
class FunctionContext {
 public:
  void save(const Tensor& tensor) { saved_.emplace_back(tensor); }
  Tensor saved(int i) const { return saved_.at(static_cast<std::size_t>(i)).unpack(); }

 private:
  std::vector<SavedTensor> saved_;
};

class Function {
 public:
  virtual ~Function() = default;
  /// Runs with grad mode off; the output must be a fresh tensor.
  virtual Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) = 0;
  /// One gradient per input (undefined: none). Use differentiable operators if second derivatives are wanted.
  virtual Gradients backward(FunctionContext& context, const Tensor& gradient) = 0;
};

/// Runs forward and records `function` on the tape.
Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs);
template <class F, class... Args>
Tensor apply(const std::string& name, const std::vector<Tensor>& inputs, Args&&... args) {
  return apply(name, std::static_pointer_cast<Function>(std::make_shared<F>(std::forward<Args>(args)...)), inputs);
}

}  // namespace poolgrad
