#include "nn/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "tensor/creation.h"
#include "tensor/graph.h"

namespace poolgrad::nn {

namespace {

/// An option under its name.
using Option = std::pair<const char*, double>;

std::string said(const Option& option) { return fmt::format("{} {}", option.first, option.second); }

/// Throws ValueError that names the first of the options that is negative, or no number.
void refuse_negative(const std::string& op, std::initializer_list<Option> options) {
  for (const Option& option : options)
    if (!(option.second >= 0)) throw ValueError("[" + op + "] must not be negative: " + said(option));
}
/// The same outside [0, 1).
void refuse_outside(const std::string& op, std::initializer_list<Option> options) {
  for (const Option& option : options)
    if (!(option.second >= 0 && option.second < 1)) throw ValueError("[" + op + "] must be in [0, 1): " + said(option));
}

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

SGD::SGD(NamedTensors parameters, SGDOptions options, CallSite)
    : Optimizer(std::move(parameters),
                {options.learning_rate, options.weight_decay, false, options.master_weights, options.groups}),
      options_(options) {
  refuse_negative("sgd", {{"learning_rate", options.learning_rate},
                          {"momentum", options.momentum},
                          {"dampening", options.dampening},
                          {"weight_decay", options.weight_decay}});
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw ValueError("[sgd] nesterov needs momentum and no dampening: " + said({"momentum", options.momentum}) + ", " +
                     said({"dampening", options.dampening}));
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

/// out = a x + b y, where y is the gradient or what became of it: of a gradient, b is multiplied by the scale.
void blend(const View& out, const GradientScale& scale, kernels::WeightedSum numbers, const View& x, const View& y,
           Device device) {
  const Stream stream = current_stream(device);
  numbers.device_scale = scale.on(device);
  if (numbers.of_gradient) numbers.b *= scale.number();
  if (numbers.recorded != nullptr || numbers.device_scale != nullptr)
    kernels::weighted_sum(stream, out, numbers, x, y);
  else
    kernels::axpby(stream, out, numbers.a, x, numbers.b, y);
}

}  // namespace

void SGD::update(std::span<const Update> updates, const GradientScale& scale) {
  for_each_alike(
      updates, [&](const Update& u) { return std::tuple(u.parameter.device(), u.step == 1, pace(u.index)); },
      [&](const auto& own, const std::vector<const Update*>& alike) {
        const Device device = std::get<Device>(own);
        std::vector<kernels::SgdOperands> operands;
        for (const Update* u : alike)
          operands.push_back(
              {u->parameter.view(), u->gradient.view(), momentum_.empty() ? View{} : momentum_[u->index].view()});
        const auto options = [this, number = scale.number(), there = scale.on(device), index = alike.front()->index] {
          return kernels::Sgd{.learning_rate = learning_rate() * pace(index).rate,
                              .momentum = options_.momentum,
                              .weight_decay = pace(index).weight_decay,
                              .dampening = options_.dampening,
                              .nesterov = options_.nesterov,
                              .first_step = parameter_steps()[index] == 0,
                              .gradient_scale = number,
                              .device_scale = there};
        };
        kernels::sgd(current_stream(device), options_of_each_step(options), operands);
      });
}

AdamW::AdamW(NamedTensors parameters, AdamWOptions options, CallSite)
    : AdamW(std::move(parameters), options, [](const std::string&, const Tensor&) { return true; }) {}

AdamW::AdamW(NamedTensors parameters, AdamWOptions options, const ParameterPredicate& takes)
    : Optimizer(std::move(parameters), {options.learning_rate, options.weight_decay, options.decay_matrices_only,
                                        options.master_weights, options.groups}),
      options_(options) {
  refuse_negative(
      "adamw",
      {{"learning_rate", options.learning_rate}, {"epsilon", options.epsilon}, {"weight_decay", options.weight_decay}});
  refuse_outside("adamw", {{"beta1", options.beta1}, {"beta2", options.beta2}});
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    const auto& [name, parameter] = this->parameters()[i];
    const bool own = takes(name, parameter);
    first_.push_back(own ? add_state(i, "first_moment") : Tensor());
    second_.push_back(own ? add_state(i, "second_moment") : Tensor());
  }
}

void AdamW::update(std::span<const Update> updates, const GradientScale& scale) {
  const auto kind = [&](const Update& u) { return std::tuple(u.parameter.device(), u.step, pace(u.index)); };
  for_each_alike(updates, kind, [&](const auto& own, const std::vector<const Update*>& alike) {
    const Device device = std::get<Device>(own);
    std::vector<kernels::AdamWOperands> operands;
    for (const Update* u : alike)
      operands.push_back({u->parameter.view(), u->gradient.view(), first_[u->index].view(), second_[u->index].view()});
    const auto options = [this, number = scale.number(), there = scale.on(device),
                          index = alike.front()->index] {  // whose numbers are those of all
      return kernels::AdamW{.learning_rate = learning_rate() * pace(index).rate,
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .epsilon = options_.epsilon,
                            .weight_decay = pace(index).weight_decay,
                            .step = parameter_steps()[index] + 1,
                            .gradient_scale = number,
                            .device_scale = there};
    };
    kernels::adamw(current_stream(device), options_of_each_step(options), operands);
  });
}

Lion::Lion(NamedTensors parameters, LionOptions options, CallSite)
    : Optimizer(std::move(parameters), {options.learning_rate, options.weight_decay, options.decay_matrices_only,
                                        options.master_weights, options.groups}),
      options_(options) {
  refuse_negative("lion", {{"learning_rate", options.learning_rate}, {"weight_decay", options.weight_decay}});
  refuse_outside("lion", {{"beta1", options.beta1}, {"beta2", options.beta2}});
  for (std::size_t i = 0; i < this->parameters().size(); ++i) momentum_.push_back(add_state(i, "momentum"));
}

void Lion::update(std::span<const Update> updates, const GradientScale& scale) {
  for (const Update& u : updates) {
    const Device device = u.parameter.device();
    const View p = u.parameter.view(), g = u.gradient.view(), m = momentum_[u.index].view();
    const Tensor direction = Tensor::empty_like(u.parameter);
    const View d = direction.view();
    const auto step = options_of_each_step([this, index = u.index] {
      const double rate = learning_rate() * pace(index).rate, decay = pace(index).weight_decay;
      return kernels::WeightedSum{.a = 1 - rate * decay, .b = -rate};
    });
    blend(d, scale, {.a = options_.beta1, .b = 1 - options_.beta1, .of_gradient = true}, m, g, device);
    kernels::unary(current_stream(device), kernels::UnaryOp::sign, d, d);
    blend(p, scale, step, p, d, device);
    blend(m, scale, {.a = options_.beta2, .b = 1 - options_.beta2, .of_gradient = true}, m, g, device);
  }
}

namespace {

ParameterPredicate taken_by_adamw(const ParameterPredicate& left_to_adamw) {
  return [left_to_adamw](const std::string& name, const Tensor& parameter) {
    return parameter.rank() != 2 || (left_to_adamw && left_to_adamw(name, parameter));
  };
}

}  // namespace

Muon::Muon(NamedTensors parameters, MuonOptions options, CallSite)
    : AdamW(std::move(parameters), options.adamw, taken_by_adamw(options.left_to_adamw)), options_(options) {
  refuse_outside("muon", {{"momentum", options.momentum}});
  if (options.newton_schulz_steps < 1)
    throw ValueError("[muon] there must be a step of Newton and Schulz: newton_schulz_steps " +
                     std::to_string(options.newton_schulz_steps));
  const ParameterPredicate not_a_matrix = taken_by_adamw(options.left_to_adamw);
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    const auto& [name, parameter] = this->parameters()[i];
    momentum_.push_back(not_a_matrix(name, parameter) ? Tensor() : add_state(i, "momentum"));
  }
}

void Muon::update(std::span<const Update> updates, const GradientScale& scale) {
  const AutocastScope as_it_is(autocast_off);
  std::vector<Update> others;
  for (const Update& u : updates) {
    if (!momentum_[u.index].defined()) {
      others.push_back(u);
      continue;
    }
    const Device device = u.parameter.device();
    const double rows = static_cast<double>(u.parameter.size(0)), columns = static_cast<double>(u.parameter.size(1));
    const kernels::WeightedSum momentum{.a = options_.momentum, .b = 1 - options_.momentum, .of_gradient = true};
    const auto step = options_of_each_step([this, index = u.index, size = 0.2 * std::sqrt(std::max(rows, columns))] {
      const double rate = learning_rate() * pace(index).rate, decay = pace(index).weight_decay;
      return kernels::WeightedSum{.a = 1 - rate * decay, .b = -rate * size};
    });
    const View p = u.parameter.view(), g = u.gradient.view(), m = momentum_[u.index].view();
    Tensor direction = Tensor::empty_like(u.parameter);  // the momentum is kept where there is no memory to go on
    blend(direction.view(), scale, momentum, m, g, device);
    if (options_.nesterov) blend(direction.view(), scale, momentum, direction.view(), g, device);
    direction = newton_schulz(direction, options_.newton_schulz_steps);
    blend(m, scale, momentum, m, g, device);
    blend(p, scale, step, p, direction.view(), device);
  }
  AdamW::update(others, scale);
}

namespace {

/// x / |x|, and 0 for 0. Divides by the largest magnitude first, so that no norm overflows or loses digits. That
/// divisor is a constant: the result does not depend on it.
Tensor normalised(const Tensor& x) {
  if (x.count() == 0) return x;
  const Tensor wide = to(x, compute_dtype(x.dtype()));
  const Tensor largest = norm(wide.detach(), std::numeric_limits<double>::infinity());
  const Tensor scaled = wide / where(largest == 0.0, 1.0, largest);
  const Tensor length = norm(scaled);
  return to(scaled / where(length == 0.0, 1.0, length), x.dtype());
}

}  // namespace

Tensor newton_schulz(const Tensor& x, int steps, CallSite) {
  if (x.rank() != 2) throw ShapeError("[newton_schulz] x must be a matrix: x " + describe(x));
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = x.size(0) > x.size(1);  // the smaller of the two products
  Tensor y = normalised(tall ? transpose(x, 0, 1) : x);
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = matmul(y, transpose(y, 0, 1));
    y = a * y + matmul(b * gram + c * matmul(gram, gram), y);
  }
  return tall ? transpose(y, 0, 1) : y;
}

}  // namespace poolgrad::nn
