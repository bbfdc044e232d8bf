#include "nn/ema.h"

#include <algorithm>

#include "allocator/base/count.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

EMA::EMA(const Module& module, EMAOptions options, CallSite)
    : parameters_(module.named_parameters()), options_(options) {
  if (!(options.decay >= 0 && options.decay < 1))
    throw ValueError("[ema] the decay must be in [0, 1), but is " + std::to_string(options.decay));
  const MemoryScope scope("ema", Category::optimizer_state);
  for (const auto& [name, parameter] : parameters_) {
    if (name == "updates")
      throw ValueError("[ema] a parameter has the name that the state reserves for its number of updates: " + name +
                       " " + describe(parameter));
    made_with_.push_back(parameter.dtype());
    averages_.emplace_back(name,
                           Tensor::empty(parameter.shape(), {compute_dtype(parameter.dtype()), parameter.device()})
                               .copy_from(parameter.detach()));
  }
}

void EMA::update(CallSite) {
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const Tensor& average = averages_[i].second;
    const auto text = [&, &own = name](const std::string& change) {
      return "[ema] " + own + " was " + change + " since its average began: average " + describe(average) +
             ", parameter " + describe(parameter);
    };
    if (parameter.device() != average.device()) throw DeviceError(text("moved or cast"));
    if (parameter.dtype() != made_with_[i]) throw DTypeError(text("moved or cast"));
    if (parameter.shape() != average.shape()) throw ShapeError(text("given another shape"));
  }
  std::int64_t n = updates_;
  count_up(n);
  const double ramp = static_cast<double>(1 + n) / static_cast<double>(10 + n);
  const double decay = options_.ramp ? std::min(options_.decay, ramp) : n == 1 ? 0.0 : options_.decay;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& average = averages_[i].second;
    const Tensor parameter = to(parameters_[i].second, average.dtype());
    if (decay == 0)  // 0 times an average that is not finite is NaN
      average.copy_from(parameter);
    else
      kernels::axpby(current_stream(average.device()), average.view(), decay, average.view(), 1 - decay,
                     parameter.view());
    average.bump_version();
  }
  updates_ = n;
}

NamedTensors EMA::tensors(CallSite) const {
  NamedTensors result;
  for (std::size_t i = 0; i < averages_.size(); ++i)
    result.emplace_back(averages_[i].first, to(averages_[i].second, parameters_[i].second.dtype()));
  return result;
}

NamedTensors EMA::state() const {
  NamedTensors result = averages_;
  result.emplace_back("updates", full({}, static_cast<double>(updates_), {.dtype = DType::i64}));
  return result;
}

void EMA::check(const NamedTensors& state) const {
  const NamedTensors own = this->state();
  for (const auto& [name, tensor] : own) {
    const Tensor* const theirs = entry_of(state, name);
    if (theirs == nullptr) throw ValueError("[ema] the state has no " + name);
    if (!fits(*theirs, tensor))
      throw ValueError("[ema] the state does not fit: " + name + " " + describe(*theirs) + ", here " +
                       describe(tensor));
  }
  if (state.size() != own.size())
    throw ValueError("[ema] the state has " + std::to_string(state.size()) + " tensors, and " +
                     std::to_string(own.size()) + " are needed");
}

std::int64_t EMA::updates_in(const Tensor& updates) {
  const std::int64_t number = updates.to_vector<std::int64_t>().at(0);
  if (number < 0 || number > largest_count)
    throw ValueError("[ema] the number of updates must be from 0 to 2^53, but is " + std::to_string(number));
  return number;
}

void EMA::load(const NamedTensors& state) {
  check(state);
  const std::int64_t updates = updates_in(*entry_of(state, "updates"));
  const NoGradGuard no_grad;
  for (const auto& [name, average] : averages_) Tensor(average).copy_from(*entry_of(state, name));
  updates_ = updates;
}

}  // namespace poolgrad::nn
