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

  /// Updates every parameter that has a gradient, in one pass over its memory (a parameter that is a transposed or
  /// sliced view goes through a row-major copy). Gradients are multiplied by `gradient_scale` on the way (clipping,
  /// averaging). Throws what the kernels throw; gradients are left as they are.
  void step(double gradient_scale = 1.0, CallSite = {});
  /// Sets every gradient to none.
  void zero_grad();

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }
  /// Steps taken so far.
  std::int64_t steps() const { return steps_; }
  /// In how many of them each parameter had a gradient and was updated, in the order of the parameters.
  const std::vector<std::int64_t>& parameter_steps() const { return parameter_steps_; }

  /// The state tensors, "<parameter>.<what>", sharing memory with the optimiser.
  const NamedTensors& state() const { return state_; }
  /// Copies `state` in and sets the step counts; without `parameter_steps` every parameter has taken all of them.
  /// Throws ValueError, changing nothing, where names, shapes, dtypes or the number of counts do not fit, and for
  /// counts that are negative or above `steps`.
  void load(const NamedTensors& state, std::int64_t steps, const std::vector<std::int64_t>& parameter_steps = {});
  /// Throws what load() would.
  void check(const NamedTensors& state, std::int64_t steps,
             const std::vector<std::int64_t>& parameter_steps = {}) const;

 protected:
  /// Throws ShapeError for a parameter whose elements share places (a broadcast).
  Optimizer(NamedTensors parameters, double learning_rate);
  /// Zeros shaped like parameter `index` in its compute dtype, tagged Category::optimizer_state.
  Tensor add_state(std::size_t index, const std::string& what);
  const NamedTensors& parameters() const { return parameters_; }
  /// Updates parameter `index`, whose own steps, this one included, number `step`. Both tensors are row-major.
  virtual void update(std::size_t index, std::int64_t step, const Tensor& parameter, const Tensor& gradient,
                      double gradient_scale) = 0;

 private:
  NamedTensors parameters_;
  NamedTensors state_;
  double learning_rate_;
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> parameter_steps_;
};

}  // namespace poolgrad::nn
