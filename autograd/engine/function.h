// A user's own differentiable operator.
//
//   struct Cube : Function {
//     Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) override {
//       context.save(inputs[0]);
//       return inputs[0] * inputs[0] * inputs[0];
//     }
//     Gradients backward(FunctionContext& context, const Tensor& gradient) override {
//       const Tensor x = context.saved(0);
//       return {3.0 * gradient * x * x};
//     }
//   };
//   Tensor y = apply<Cube>("cube", {x});
//
// One with several outputs is a MultiFunction: its forward returns them in a vector, and so does apply().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/engine/record.h"

namespace poolgrad {

class MultiFunction;

/// Carries tensors from forward to backward.
class FunctionContext {
 public:
  /// Keeps an input, an output, or any tensor made in forward.
  void save(const Tensor& tensor) { pending_.push_back(tensor); }
  /// The i-th tensor saved. Throws IndexError beyond the last, and Error if it was written in place since.
  Tensor saved(int i) const;
  /// True if the gradient of input i is wanted; in forward, if a backward pass may want it: the input requires a
  /// gradient and grad mode was on. Throws IndexError for an i without an input.
  bool needs(int i) const;

 private:
  friend std::vector<Tensor> apply(const std::string& name, std::shared_ptr<MultiFunction> function,
                                   const std::vector<Tensor>& inputs);
  std::vector<Tensor> pending_;  // until forward returns and it is known which ones are outputs
  std::vector<SavedTensor> saved_;
  std::vector<std::uint8_t> needed_;  // by input
};

class Function {
 public:
  virtual ~Function() = default;
  /// Runs with grad mode off. An input that is returned as it is counts as a view of itself, and so does a tensor that
  /// the function keeps: the caller gets another handle on the same memory. Keep inputs by context.save(): in a member
  /// of a function that is applied to its own results they would hold the graph that holds the function.
  virtual Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) = 0;
  /// One gradient per input (undefined: none). Use differentiable operators if second derivatives are wanted.
  virtual Gradients backward(FunctionContext& context, const Tensor& gradient) = 0;
};

/// The same with any number of outputs above 0, of any dtypes: integer ones (indices) carry no gradient.
class MultiFunction {
 public:
  virtual ~MultiFunction() = default;
  virtual std::vector<Tensor> forward(FunctionContext& context, const std::vector<Tensor>& inputs) = 0;
  /// `gradients` has one entry per output, undefined where the output did not contribute; one at least is defined.
  virtual Gradients backward(FunctionContext& context, const Gradients& gradients) = 0;
};

/// Runs forward and records `function` on the tape under `name`. Throws Error where forward returns nothing or an
/// undefined tensor. Backward throws Error naming the operator if the number, a shape, a dtype or a device of its
/// gradients is wrong.
Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs);
std::vector<Tensor> apply(const std::string& name, std::shared_ptr<MultiFunction> function,
                          const std::vector<Tensor>& inputs);
/// F(args...), made on the spot: a Tensor for a Function, a vector of them for a MultiFunction.
template <class F, class... Args>
auto apply(const std::string& name, const std::vector<Tensor>& inputs, Args&&... args) {
  using Base = std::conditional_t<std::is_base_of_v<MultiFunction, F>, MultiFunction, Function>;
  return apply(name, std::static_pointer_cast<Base>(std::make_shared<F>(std::forward<Args>(args)...)), inputs);
}

}  // namespace poolgrad
