#include "nn/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/graph.h"

namespace poolgrad::nn {

namespace {

constexpr std::uint64_t unknown_version = std::numeric_limits<std::uint64_t>::max();

}  // namespace

Optimizer::Optimizer(NamedTensors parameters, double learning_rate, bool master_weights)
    : parameters_(std::move(parameters)),
      masters_(parameters_.size()),
      learning_rate_(learning_rate),
      parameter_steps_(parameters_.size(), 0) {
  for (const auto& [name, parameter] : parameters_)
    if (repeats_elements(parameter.geometry()))
      throw ShapeError("[optimizer] several elements of a parameter share one place: " + name + " " +
                       describe(parameter));
  for (std::size_t i = 0; i < parameters_.size() && master_weights; ++i)
    if (const Tensor& parameter = parameters_[i].second; is_half(parameter.dtype()))
      masters_[i].value = add_state(i, "master").copy_from(parameter.detach());
  note_versions();
}

void Optimizer::step(double gradient_scale, CallSite) {
  const NoGradGuard no_grad;
  const MemoryScope scope(Category::temp);
  Graph* const graph = Graph::recording();  // whose replays are the steps
  const auto count = [&](std::function<void()> action) {
    graph != nullptr ? graph->before_replay(std::move(action)) : action();
  };
  if (graph != nullptr) graph->before_replay([this] { refuse_writes(); });
  count([this] { ++steps_; });
  adopt_writes();
  std::vector<Update> updates;
  const auto flush = [&] {
    update(updates, gradient_scale);
    for (const Update& done : updates) count([this, index = done.index] { ++parameter_steps_[index]; });
    updates.clear();
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& parameter = parameters_[i].second;
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    // Kernels walk row-major memory. A view is updated through a copy, a half type through its master: neither waits
    // for others.
    const Tensor dense = masters_[i].value.defined() ? masters_[i].value : contiguous(parameter);
    updates.push_back({i, parameter_steps_[i] + 1, dense, contiguous(to(gradient, dense.dtype()))});
    const bool copied = !dense.is_same(parameter);
    if (copied || !updates.back().gradient.is_same(gradient)) flush();
    if (copied)
      parameter.copy_from(dense);
    else
      parameter.bump_version();
  }
  flush();
  note_versions();
}

void Optimizer::adopt_writes() {
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    Tensor &parameter = parameters_[i].second, &master = masters_[i].value;
    if (!master.defined() || masters_[i].version == parameter.storage()->version()) continue;
    const Tensor untouched = equal(to(master, parameter.dtype()), parameter);
    master.copy_from(where(untouched, master, to(parameter, master.dtype())));
  }
}

void Optimizer::refuse_writes() const {
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (masters_[i].value.defined() && masters_[i].version != parameters_[i].second.storage()->version())
      throw Error("[optimizer] " + parameters_[i].first +
                  " was written between replays of a recorded step, of which its f32 master would not hear: " +
                  describe(parameters_[i].second));
}

void Optimizer::note_versions() {
  for (std::size_t i = 0; i < masters_.size(); ++i) masters_[i].version = parameters_[i].second.storage()->version();
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
  for (Master& master : masters_) master.version = unknown_version;
}

namespace {

/// Calls f(kind, pointers) for items of one kind together, in the order of the first of each.
template <class Items, class Kind, class F>
void for_each_alike(const Items& items, const Kind& kind, const F& f) {
  std::vector<bool> done(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (done[i]) continue;
    std::vector<decltype(&items[i])> alike;
    for (std::size_t j = i; j < items.size(); ++j) {
      if (done[j] || kind(items[j]) != kind(items[i])) continue;
      alike.push_back(&items[j]);
      done[j] = true;
    }
    f(kind(items[i]), alike);
  }
}

}  // namespace

SGD::SGD(NamedTensors parameters, SGDOptions options)
    : Optimizer(std::move(parameters), options.learning_rate, options.master_weights), options_(options) {
  if (options.learning_rate < 0 || options.momentum < 0 || options.weight_decay < 0)
    throw ValueError("[sgd] learning rate, momentum and weight decay must not be negative: " +
                     std::to_string(options.learning_rate) + ", " + std::to_string(options.momentum) + ", " +
                     std::to_string(options.weight_decay));
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw ValueError("[sgd] nesterov needs momentum and no dampening: " + std::to_string(options.momentum) + ", " +
                     std::to_string(options.dampening));
  if (options.momentum == 0) return;
  for (std::size_t i = 0; i < this->parameters().size(); ++i) momentum_.push_back(add_state(i, "momentum"));
}

namespace {

/// The options of an update; while a step is recorded, such that each replay asks `options` for them anew.
template <class Options>
auto options_of_each_step(const Options& options) {
  auto now = options();
  if (Graph* const graph = Graph::recording())
    now.recorded =
        graph->value(kernels::recorded_bytes, [options](void* to) { kernels::write_recorded(options(), to); });
  return now;
}

}  // namespace

void SGD::update(std::span<const Update> updates, double gradient_scale) {
  for_each_alike(
      updates, [](const Update& u) { return std::pair(u.parameter.device(), u.step == 1); },
      [&](const std::pair<Device, bool>& own, const std::vector<const Update*>& alike) {
        std::vector<kernels::SgdOperands> operands;
        for (const Update* u : alike)
          operands.push_back(
              {u->parameter.view(), u->gradient.view(), momentum_.empty() ? View{} : momentum_[u->index].view()});
        const auto options = [this, gradient_scale, index = alike.front()->index] {
          return kernels::Sgd{.learning_rate = learning_rate(),
                              .momentum = options_.momentum,
                              .weight_decay = options_.weight_decay,
                              .dampening = options_.dampening,
                              .nesterov = options_.nesterov,
                              .first_step = parameter_steps()[index] == 0,
                              .gradient_scale = gradient_scale};
        };
        kernels::sgd(current_stream(own.first), options_of_each_step(options), operands);
      });
}

AdamW::AdamW(NamedTensors parameters, AdamWOptions options)
    : Optimizer(std::move(parameters), options.learning_rate, options.master_weights), options_(options) {
  if (options.learning_rate < 0 || options.epsilon < 0 || options.weight_decay < 0)
    throw ValueError("[adamw] learning rate, epsilon and weight decay must not be negative: " +
                     std::to_string(options.learning_rate) + ", " + std::to_string(options.epsilon) + ", " +
                     std::to_string(options.weight_decay));
  if (!(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1))
    throw ValueError("[adamw] betas must be in [0, 1): " + std::to_string(options.beta1) + ", " +
                     std::to_string(options.beta2));
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    first_.push_back(add_state(i, "first_moment"));
    second_.push_back(add_state(i, "second_moment"));
  }
}

void AdamW::update(std::span<const Update> updates, double gradient_scale) {
  const auto kind = [&](const Update& u) {
    return std::tuple(u.parameter.device(), u.step, !options_.decay_matrices_only || u.parameter.rank() > 1);
  };
  for_each_alike(updates, kind, [&](const auto& own, const std::vector<const Update*>& alike) {
    const auto& [device, step, decays] = own;  // `step` is that of each of them
    std::vector<kernels::AdamWOperands> operands;
    for (const Update* u : alike)
      operands.push_back({u->parameter.view(), u->gradient.view(), first_[u->index].view(), second_[u->index].view()});
    const auto options = [this, gradient_scale, decay = decays ? options_.weight_decay : 0.0,
                          index = alike.front()->index] {
      return kernels::AdamW{.learning_rate = learning_rate(),
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .epsilon = options_.epsilon,
                            .weight_decay = decay,
                            .step = parameter_steps()[index] + 1,
                            .gradient_scale = gradient_scale};
    };
    kernels::adamw(current_stream(device), options_of_each_step(options), operands);
  });
}

Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters) {
  const MemoryScope scope("gradient_norm", Category::workspace);
  const auto zero_on = [](Device device) { return zeros({}, {.dtype = DType::f64, .device = device}); };
  const Tensor total = zero_on(parameters.empty() ? cpu : parameters.front().device());
  const Stream stream = current_stream(total.device());
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters)
    if (Tensor gradient = parameter.grad(); gradient.defined()) gradients.push_back(std::move(gradient));
  for_each_alike(gradients, std::mem_fn(&Tensor::device), [&](Device device, const std::vector<const Tensor*>& alike) {
    const Tensor sum = device == total.device() ? total : zero_on(device);
    std::vector<View> views;
    for (const Tensor* gradient : alike) views.push_back(gradient->view());
    kernels::add_sums_of_squares(current_stream(device), sum.view(), views);
    if (device == total.device()) return;
    const Tensor moved = Tensor::empty_like(total).copy_from(sum);
    kernels::axpby(stream, total.view(), 1.0, total.view(), 1.0, moved.view());
  });
  kernels::unary(stream, kernels::UnaryOp::sqrt, total.view(), total.view());
  return total;
}

double gradient_norm(const std::vector<Tensor>& parameters) { return gradient_norm_tensor(parameters).item(); }

double clip_scale(double norm, double limit) {
  if (!(limit >= 0)) throw ValueError("[clip_scale] the limit must not be negative: " + std::to_string(limit));
  return limit == 0 || norm <= limit ? 1.0 : limit / norm;
}

double CosineSchedule::rate(std::int64_t step) const {
  const std::int64_t top = std::max<std::int64_t>(warmup, 1);  // the step at the peak
  if (step <= top) return peak * static_cast<double>(step) / static_cast<double>(top);
  const double span = static_cast<double>(std::max<std::int64_t>(steps - top, 1));
  const double progress = std::min(1.0, static_cast<double>(step - top) / span);
  return peak * (floor + (1.0 - floor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

}  // namespace poolgrad::nn
