#include "nn/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "tensor/creation.h"
#include "tensor/graph.h"

namespace poolgrad::nn {

namespace {

/// The name and value of an option.
using Option = std::pair<const char*, double>;

std::string said(const Option& option) { return fmt::format("{} {}", option.first, option.second); }

/// Throws ValueError that names the first option that is negative or NaN.
void refuse_negative(const std::string& op, std::initializer_list<Option> options) {
  for (const Option& option : options)
    if (!(option.second >= 0)) throw ValueError("[" + op + "] must not be negative: " + said(option));
}
/// Throws ValueError that names the first option outside [0, 1).
void refuse_outside(const std::string& op, std::initializer_list<Option> options) {
  for (const Option& option : options)
    if (!(option.second >= 0 && option.second < 1)) throw ValueError("[" + op + "] must be in [0, 1): " + said(option));
}

/// Calls f(kind, pointers) once for all items of a kind, in the order of the first item of each kind.
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

/// Returns the options of an update. While a Graph records, each replay calls `options` again.
template <class Options>
auto options_of_each_step(const Options& options) {
  auto now = options();
  if (Graph* const graph = Graph::recording())
    now.recorded =
        graph->value(kernels::recorded_bytes, [options](void* to) { kernels::write_recorded(options(), to); });
  return now;
}

/// Calls `kernel` once for all parameters of one device with equal same(update). Passes options(index) of the first
/// parameter, and states(index) of each.
template <class Updates, class Same, class States, class Options, class Kernel>
void update_together(const Kernel& kernel, const Updates& updates, const GradientScale& scale, const Same& same,
                     const States& states, const Options& options) {
  const auto kind = [&](const auto& u) { return std::pair(u.parameter.device(), same(u)); };
  for_each_alike(updates, kind, [&](const auto& own, const auto& alike) {
    const Device device = own.first;
    std::vector<kernels::UpdateOperands> operands;
    for (const auto* u : alike) operands.push_back({u->parameter.view(), u->gradient.view(), states(u->index)});
    const auto now = [options, number = scale.number(), there = scale.on(device), index = alike.front()->index] {
      auto result = options(index);
      result.gradient_scale = number;
      result.device_scale = there;
      return result;
    };
    kernel(current_stream(device), options_of_each_step(now), operands);
  });
}

/// Returns the view of an optional state.
View view_of(const std::vector<Tensor>& all, std::size_t index) { return all.empty() ? View{} : all[index].view(); }

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

/// out = a x + b y. With numbers.of_gradient, y is the gradient itself, and b is multiplied by the scale.
void blend(const View& out, const GradientScale& scale, kernels::WeightedSum numbers, const View& x, const View& y,
           Device device) {
  const Stream stream = current_stream(device);
  numbers.device_scale = scale.on(device);
  if (numbers.of_gradient) numbers.b *= scale.number();
  kernels::weighted_sum(stream, out, numbers, x, y);  // also for eager steps, so that replays have the same bits
}

}  // namespace

void SGD::update(std::span<const Update> updates, const GradientScale& scale) {
  update_together(
      kernels::sgd, updates, scale, [&](const Update& u) { return std::pair(u.step == 1, pace(u.index)); },
      [&](std::size_t index) { return std::array<View, 3>{view_of(momentum_, index)}; },
      [this](std::size_t index) {
        return kernels::Sgd{.learning_rate = learning_rate() * pace(index).rate,
                            .momentum = options_.momentum,
                            .weight_decay = pace(index).weight_decay,
                            .dampening = options_.dampening,
                            .nesterov = options_.nesterov,
                            .first_step = parameter_steps()[index] == 0};
      });
}

AdamW::AdamW(NamedTensors parameters, AdamWOptions options, CallSite)
    : AdamW(std::move(parameters), options, "adamw", [](const std::string&, const Tensor&) { return true; }) {}

AdamW::AdamW(NamedTensors parameters, AdamWOptions options, const char* op, const ParameterPredicate& takes,
             bool coupled)
    : Optimizer(std::move(parameters), {options.learning_rate, options.weight_decay, options.decay_matrices_only,
                                        options.master_weights, options.groups}),
      options_(options),
      coupled_(coupled) {
  refuse_negative(
      op,
      {{"learning_rate", options.learning_rate}, {"epsilon", options.epsilon}, {"weight_decay", options.weight_decay}});
  refuse_outside(op, {{"beta1", options.beta1}, {"beta2", options.beta2}});
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    const auto& [name, parameter] = this->parameters()[i];
    const bool own = takes(name, parameter);
    first_.push_back(own ? add_state(i, "first_moment") : Tensor());
    second_.push_back(own ? add_state(i, "second_moment") : Tensor());
    if (options.amsgrad) largest_.push_back(own ? add_state(i, "largest_second_moment") : Tensor());
  }
}

void AdamW::update(std::span<const Update> updates, const GradientScale& scale) {
  update_together(
      kernels::adamw, updates, scale, [&](const Update& u) { return std::pair(u.step, pace(u.index)); },
      [&](std::size_t index) {
        return std::array{first_[index].view(), second_[index].view(), view_of(largest_, index)};
      },
      [this](std::size_t index) {
        return kernels::AdamW{.learning_rate = learning_rate() * pace(index).rate,
                              .beta1 = options_.beta1,
                              .beta2 = options_.beta2,
                              .epsilon = options_.epsilon,
                              .weight_decay = pace(index).weight_decay,
                              .step = parameter_steps()[index] + 1,
                              .coupled = coupled_,
                              .amsgrad = options_.amsgrad};
      });
}

Adam::Adam(NamedTensors parameters, AdamOptions o, CallSite)
    : AdamW(
          std::move(parameters),
          {.learning_rate = o.learning_rate,
           .beta1 = o.beta1,
           .beta2 = o.beta2,
           .epsilon = o.epsilon,
           .weight_decay = o.weight_decay,
           .amsgrad = o.amsgrad,
           .decay_matrices_only = o.decay_matrices_only,
           .master_weights = o.master_weights,
           .groups = std::move(o.groups)},
          "adam", [](const std::string&, const Tensor&) { return true; }, true) {}

RMSprop::RMSprop(NamedTensors parameters, RMSpropOptions options, CallSite)
    : Optimizer(std::move(parameters), {options.learning_rate, options.weight_decay, options.decay_matrices_only,
                                        options.master_weights, options.groups}),
      options_(options) {
  refuse_negative("rmsprop", {{"learning_rate", options.learning_rate},
                              {"epsilon", options.epsilon},
                              {"weight_decay", options.weight_decay},
                              {"momentum", options.momentum}});
  refuse_outside("rmsprop", {{"alpha", options.alpha}});
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    square_.push_back(add_state(i, "square_average"));
    if (options.centered) mean_.push_back(add_state(i, "gradient_average"));
    if (options.momentum != 0) momentum_.push_back(add_state(i, "momentum"));
  }
}

void RMSprop::update(std::span<const Update> updates, const GradientScale& scale) {
  update_together(
      kernels::rmsprop, updates, scale, [&](const Update& u) { return pace(u.index); },
      [&](std::size_t index) {
        std::array<View, 3> states{square_[index].view()};
        std::size_t next = 1;
        if (!mean_.empty()) states[next++] = mean_[index].view();
        if (!momentum_.empty()) states[next] = momentum_[index].view();
        return states;
      },
      [this](std::size_t index) {
        return kernels::RmsProp{.learning_rate = learning_rate() * pace(index).rate,
                                .alpha = options_.alpha,
                                .epsilon = options_.epsilon,
                                .weight_decay = pace(index).weight_decay,
                                .momentum = options_.momentum,
                                .centered = options_.centered};
      });
}

Adafactor::Adafactor(NamedTensors parameters, AdafactorOptions options, CallSite)
    : Optimizer(std::move(parameters), {options.learning_rate, options.weight_decay, options.decay_matrices_only,
                                        options.master_weights, options.groups}),
      options_(options) {
  refuse_negative("adafactor", {{"learning_rate", options.learning_rate},
                                {"epsilon1", options.epsilon1.value_or(0)},
                                {"epsilon2", options.epsilon2},
                                {"weight_decay", options.weight_decay}});
  if (!(options.beta2_decay <= 0))
    throw ValueError("[adafactor] must not be positive: " + said({"beta2_decay", options.beta2_decay}));
  if (!(options.clip_threshold >= 1))
    throw ValueError("[adafactor] must not be below 1: " + said({"clip_threshold", options.clip_threshold}));
  for (std::size_t i = 0; i < this->parameters().size(); ++i) {
    Shape shape = this->parameters()[i].second.shape(), rows = shape, columns = shape;
    const bool factored = shape.rank() > 1;
    if (factored) {
      rows[rows.rank() - 1] = 1;
      columns[columns.rank() - 2] = 1;
    }
    rows_.push_back(factored ? add_state(i, "row_variance", rows) : Tensor());
    columns_.push_back(factored ? add_state(i, "column_variance", columns) : Tensor());
    variances_.push_back(factored ? Tensor() : add_state(i, "variance"));
  }
}

void Adafactor::update(std::span<const Update> updates, const GradientScale& scale) {
  const AutocastScope as_it_is(autocast_off);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const Update& u : updates) {
    if (u.parameter.numel() == 0) continue;
    const Device device = u.parameter.device();
    const auto average = options_of_each_step([this, index = u.index] {
      const double rest = std::pow(static_cast<double>(parameter_steps()[index] + 1), options_.beta2_decay);
      return kernels::WeightedSum{.a = 1 - rest, .b = rest};
    });
    const auto step = options_of_each_step([this, index = u.index] {
      const double rate = learning_rate() * pace(index).rate, t = static_cast<double>(parameter_steps()[index] + 1);
      return kernels::WeightedSum{.a = 1 - rate * pace(index).weight_decay, .b = -std::min(rate, 1 / std::sqrt(t))};
    });
    const Tensor g = Tensor::empty_like(u.gradient);
    blend(g.view(), scale, {.a = 0, .b = 1, .of_gradient = true}, u.gradient.view(), u.gradient.view(), device);
    const auto blend_in = [&](const Tensor& state, const Tensor& value) {
      blend(state.view(), scale, average, state.view(), value.view(), device);
      return state;
    };
    const Tensor square = g * g;
    const double epsilon = options_.epsilon1.value_or(u.parameter.dtype() == DType::f64 ? 0x1p-52 : 0x1p-23);
    Tensor variance;
    if (rows_[u.index].defined()) {
      const Tensor row = blend_in(rows_[u.index], mean(square, -1, true));
      const Tensor column = blend_in(columns_[u.index], mean(square, -2, true));
      variance = row / clamp(mean(row, -2, true), epsilon, infinity) * column;
    } else {
      variance = blend_in(variances_[u.index], square);
    }
    const Tensor direction = g / sqrt(clamp(variance, epsilon * epsilon, infinity));
    const double root = std::sqrt(static_cast<double>(u.parameter.numel()));
    const Tensor size = maximum(norm(u.parameter) / root, options_.epsilon2),
                 excess = maximum(norm(direction) / (root * options_.clip_threshold), 1.0);
    blend(u.parameter.view(), scale, step, u.parameter.view(), (direction * (size / excess)).view(), device);
  }
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
    return parameter.dim() != 2 || (left_to_adamw && left_to_adamw(name, parameter));
  };
}

}  // namespace

Muon::Muon(NamedTensors parameters, MuonOptions options, CallSite)
    : AdamW(std::move(parameters), options.adamw, "adamw", taken_by_adamw(options.left_to_adamw)), options_(options) {
  refuse_outside("muon", {{"momentum", options.momentum}});
  if (options.newton_schulz_steps < 1)
    throw ValueError("[muon] must be at least 1: newton_schulz_steps " + std::to_string(options.newton_schulz_steps));
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
    Tensor direction = Tensor::empty_like(u.parameter);  // first, so that the momentum stays if memory is short
    blend(direction.view(), scale, momentum, m, g, device);
    if (options_.nesterov) blend(direction.view(), scale, momentum, direction.view(), g, device);
    direction = newton_schulz(direction, options_.newton_schulz_steps);
    blend(m, scale, momentum, m, g, device);
    blend(p, scale, step, p, direction.view(), device);
  }
  AdamW::update(others, scale);
}

namespace {

/// Returns x / |x|, and 0 for 0. First divides by the largest magnitude, so that no norm overflows or loses digits.
/// That divisor is treated as a constant, since the result does not depend on it.
Tensor normalised(const Tensor& x) {
  if (x.numel() == 0) return x;
  const Tensor wide = to(x, compute_dtype(x.dtype()));
  const Tensor largest = norm(wide.detach(), std::numeric_limits<double>::infinity());
  const Tensor scaled = wide / where(largest == 0.0, 1.0, largest);
  const Tensor length = norm(scaled);
  return to(scaled / where(length == 0.0, 1.0, length), x.dtype());
}

}  // namespace

Tensor newton_schulz(const Tensor& x, int steps, CallSite) {
  if (x.dim() != 2) throw ShapeError("[newton_schulz] x must be a matrix: x " + describe(x));
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = x.size(0) > x.size(1);  // takes the smaller of the two products
  Tensor y = normalised(tall ? transpose(x, 0, 1) : x);
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = matmul(y, transpose(y, 0, 1));
    y = a * y + matmul(b * gram + c * matmul(gram, gram), y);
  }
  return tall ? transpose(y, 0, 1) : y;
}

}  // namespace poolgrad::nn
