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
// A MultiFunction has several outputs: its forward and apply() return a vector.
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
  /// Returns the i-th saved tensor. Throws IndexError beyond the last, and Error if it was written in place since.
  Tensor saved(int i) const;
  /// Returns whether the gradient of input i is wanted. In forward, returns whether a backward pass may want it: the
  /// input requires a gradient and grad mode was on. Throws IndexError for an input index out of range.
  bool needs(int i) const;

 private:
  friend std::vector<Tensor> apply(const std::string& name, std::shared_ptr<MultiFunction> function,
                                   const std::vector<Tensor>& inputs);
  std::vector<Tensor> pending_;  // until forward returns and the outputs are known
  std::vector<SavedTensor> saved_;
  std::vector<std::uint8_t> needed_;  // by input
};

class Function {
 public:
  virtual ~Function() = default;
  /// Runs with grad mode off. The caller gets a new handle on the memory of a returned tensor. A returned input, or a
  /// tensor that the function keeps, therefore counts as a view. Keep inputs by context.save(). An input kept in a
  /// member may hold the graph that holds the function, which leaks both.
  virtual Tensor forward(FunctionContext& context, const std::vector<Tensor>& inputs) = 0;
  /// Returns one gradient per input; undefined means none. Use differentiable operators if second derivatives are
  /// needed.
  virtual Gradients backward(FunctionContext& context, const Tensor& gradient) = 0;
};

/// The same with one or more outputs of any dtypes. Integer outputs carry no gradient.
class MultiFunction {
 public:
  virtual ~MultiFunction() = default;
  virtual std::vector<Tensor> forward(FunctionContext& context, const std::vector<Tensor>& inputs) = 0;
  /// `gradients` has one entry per output, undefined if the output did not contribute; at least one is defined.
  virtual Gradients backward(FunctionContext& context, const Gradients& gradients) = 0;
};

/// Runs forward and records `function` on the tape under `name`. Throws Error if forward returns nothing or an
/// undefined tensor. Backward throws Error with the name if the number, shape, dtype or device of its gradients is
/// wrong.
Tensor apply(const std::string& name, std::shared_ptr<Function> function, const std::vector<Tensor>& inputs);
std::vector<Tensor> apply(const std::string& name, std::shared_ptr<MultiFunction> function,
                          const std::vector<Tensor>& inputs);
/// Constructs F(args...) and applies it. Returns a Tensor for a Function, a vector for a MultiFunction.
template <class F, class... Args>
auto apply(const std::string& name, const std::vector<Tensor>& inputs, Args&&... args) {
  using Base = std::conditional_t<std::is_base_of_v<MultiFunction, F>, MultiFunction, Function>;
  return apply(name, std::static_pointer_cast<Base>(std::make_shared<F>(std::forward<Args>(args)...)), inputs);
}

}  // namespace poolgrad
