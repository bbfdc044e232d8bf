#include "nn/optimizer.h"

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/views.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

Optimizer::Optimizer(NamedTensors parameters, double learning_rate)
    : parameters_(std::move(parameters)), learning_rate_(learning_rate) {}

void Optimizer::step(double gradient_scale) {
  const NoGradGuard no_grad;
  ++steps_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& parameter = parameters_[i].second;
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    update(i, parameter, contiguous(gradient), gradient_scale);
    parameter.bump_version();
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

void Optimizer::check(const NamedTensors& state) const {
  if (state.size() != state_.size())
    throw ValueError("[optimizer] the state has " + std::to_string(state.size()) + " tensors, the optimiser " +
                     std::to_string(state_.size()));
  for (std::size_t i = 0; i < state.size(); ++i)
    if (state[i].first != state_[i].first || state[i].second.shape() != state_[i].second.shape() ||
        state[i].second.dtype() != state_[i].second.dtype())
      throw ValueError("[optimizer] the state does not fit the optimiser: " + state[i].first + " " +
                       describe(state[i].second) + ", " + state_[i].first + " " + describe(state_[i].second));
}

void Optimizer::load(const NamedTensors& state, std::int64_t steps) {
  if (steps < 0) throw ValueError("[optimizer] the number of steps must not be negative: " + std::to_string(steps));
  check(state);
  for (std::size_t i = 0; i < state.size(); ++i) state_[i].second.copy_from(state[i].second);
  steps_ = steps;
}

}  // namespace poolgrad::nn
