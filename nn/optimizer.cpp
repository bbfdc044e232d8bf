#include "nn/optimizer.h"

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/views.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

Optimizer::Optimizer(NamedTensors parameters, double learning_rate)
    : parameters_(std::move(parameters)), learning_rate_(learning_rate), parameter_steps_(parameters_.size(), 0) {
  for (const auto& [name, parameter] : parameters_)
    if (repeats_elements(parameter.geometry()))
      throw ShapeError("[optimizer] several elements of a parameter share one place: " + name + " " +
                       describe(parameter));
}

void Optimizer::step(double gradient_scale, CallSite) {
  const NoGradGuard no_grad;
  const MemoryScope scope(Category::temp);
  ++steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& parameter = parameters_[i].second;
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    // Kernels walk row-major memory; a view is updated through a copy.
    const Tensor dense = contiguous(parameter);
    update(i, parameter_steps_[i] + 1, dense, contiguous(gradient), gradient_scale);
    ++parameter_steps_[i];
    if (dense.is_same(parameter))
      parameter.bump_version();
    else
      parameter.copy_from(dense);
  }
}

void Optimizer::zero_grad() {
  for (auto& [name, parameter] : parameters_) parameter.set_grad({});
}

Tensor Optimizer::add_state(std::size_t index, const std::string& what) {
  const auto& [name, parameter] = parameters_[index];
  const MemoryScope scope(what, Category::optimizer_state);
  Tensor state = zeros(parameter.shape(), {compute_dtype(parameter.dtype()), parameter.device()});
  state_.emplace_back(name + "." + what, state);
  return state;
}

void Optimizer::check(const NamedTensors& state, std::int64_t steps,
                      const std::vector<std::int64_t>& parameter_steps) const {
  if (state.size() != state_.size())
    throw ValueError("[optimizer] the state has " + std::to_string(state.size()) + " tensors, the optimiser " +
                     std::to_string(state_.size()));
  for (std::size_t i = 0; i < state.size(); ++i)
    if (state[i].first != state_[i].first || state[i].second.shape() != state_[i].second.shape() ||
        state[i].second.dtype() != state_[i].second.dtype())
      throw ValueError("[optimizer] the state does not fit the optimiser: " + state[i].first + " " +
                       describe(state[i].second) + ", " + state_[i].first + " " + describe(state_[i].second));
  if (steps < 0) throw ValueError("[optimizer] the number of steps must not be negative: " + std::to_string(steps));
  if (!parameter_steps.empty() && parameter_steps.size() != parameters_.size())
    throw ValueError("[optimizer] the state has the steps of " + std::to_string(parameter_steps.size()) +
                     " parameters, the optimiser has " + std::to_string(parameters_.size()));
  for (const std::int64_t own : parameter_steps)
    if (own < 0 || own > steps)
      throw ValueError("[optimizer] the steps of a parameter must be between 0 and those of the optimiser: " +
                       std::to_string(own) + ", " + std::to_string(steps));
}

void Optimizer::load(const NamedTensors& state, std::int64_t steps, const std::vector<std::int64_t>& parameter_steps) {
  check(state, steps, parameter_steps);
  for (std::size_t i = 0; i < state.size(); ++i) state_[i].second.copy_from(state[i].second);
  steps_ = steps;
  parameter_steps_ = parameter_steps.empty() ? std::vector(parameters_.size(), steps) : parameter_steps;
}

}  // namespace poolgrad::nn
