// What optimisers share: the parameters, the step count, the state that a checkpoint holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"

namespace poolgrad::nn {

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, in one pass over its memory. Gradients are multiplied by
  /// `gradient_scale` on the way (clipping, averaging). Throws what the kernels throw; gradients are left as they are.
  void step(double gradient_scale = 1.0);
  /// Sets every gradient to none.
  void zero_grad();

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }
  /// Steps taken so far.
  std::int64_t steps() const { return steps_; }

  /// The state tensors, "<parameter>.<what>", sharing memory with the optimiser.
  const NamedTensors& state() const { return state_; }
  /// Copies `state` in and sets the step count. Throws ValueError, changing nothing, where names, shapes or dtypes do
  /// not fit.
  void load(const NamedTensors& state, std::int64_t steps);
  /// Throws what load() would.
  void check(const NamedTensors& state) const;

 protected:
  Optimizer(NamedTensors parameters, double learning_rate);
  /// Zeros shaped like parameter `index` in its compute dtype, tagged Category::optimizer_state.
  Tensor add_state(std::size_t index, const std::string& what);
  const NamedTensors& parameters() const { return parameters_; }
  /// Updates parameter `index`; steps() already counts this step.
  virtual void update(std::size_t index, const Tensor& parameter, const Tensor& gradient, double gradient_scale) = 0;

 private:
  NamedTensors parameters_;
  NamedTensors state_;
  double learning_rate_;
  std::int64_t steps_ = 0;
};

}  // namespace poolgrad::nn
