#include "nn/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
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

/// Kernels write each element of a parameter once.
void refuse_broadcast(const std::string& name, const Tensor& parameter) {
  if (repeats_elements(parameter.geometry()))
    throw ShapeError("[optimizer] several elements of a parameter share one place: " + name + " " +
                     describe(parameter));
}

}  // namespace

Optimizer::Optimizer(NamedTensors parameters, const Common& common, CallSite)
    : parameters_(std::move(parameters)),
      masters_(parameters_.size()),
      learning_rate_(common.learning_rate),
      parameter_steps_(parameters_.size(), 0) {
  for (const ParameterGroup& group : common.groups)
    if (!group.applies || !(group.rate >= 0) || !(group.weight_decay.value_or(0.0) >= 0))
      throw ValueError("[optimizer] a group needs a predicate, and a rate and a decay that are not negative: " +
                       said({"rate", group.rate}) + ", " + said({"decay", group.weight_decay.value_or(0.0)}) +
                       (group.applies ? "" : ", no predicate"));
  if (parameters_.empty() && !common.may_be_empty)
    throw ValueError(
        "[optimizer] no parameters: named_parameters() has those that a module was told of, by add_module() or as its "
        "own");
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.defined()) throw ValueError("[optimizer] the parameter '" + name + "' is undefined");
    refuse_broadcast(name, parameter);
    made_with_.emplace_back(parameter);
    Pace& own = paces_.emplace_back(Pace{1.0, common.weight_decay});
    if (common.decay_matrices_only && !(parameter.rank() > 1)) own.weight_decay = 0.0;
    for (const ParameterGroup& group : common.groups) {
      if (!group.applies(name, parameter)) continue;
      own = {group.rate, group.weight_decay.value_or(own.weight_decay)};
      break;
    }
  }
  for (std::size_t i = 0; i < parameters_.size() && common.master_weights; ++i)
    if (const Tensor& parameter = parameters_[i].second; is_half(parameter.dtype()))
      masters_[i].value = add_state(i, "master").copy_from(parameter.detach());
  note_versions();
}

void Optimizer::step(const GradientScale& gradient_scale, CallSite) {
  refuse_changed();
  const NoGradGuard no_grad;
  const MemoryScope scope(Category::temp);
  Graph* const graph = Graph::recording();  // whose replays are the steps
  const auto count = [&](std::function<void()> action) {
    graph != nullptr ? graph->before_replay(std::move(action)) : action();
  };
  if (graph != nullptr) graph->before_replay([this] { refuse_writes(); });
  adopt_writes();
  std::vector<Update> updates;
  bool counted = false;
  const auto flush = [&] {
    update(updates, gradient_scale);
    if (!std::exchange(counted, true))
      count([this] {
        before_ = parameter_steps_;
        ++steps_;
      });
    for (const Update& done : updates) count([this, index = done.index] { ++parameter_steps_[index]; });
    updates.clear();
  };
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [this](std::size_t i) { return !needs_memory(i); });
  for (const std::size_t i : order) {
    Tensor& parameter = parameters_[i].second;
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    // Kernels walk row-major memory. A view is updated through a copy, a half type through its master: neither waits
    // for others.
    const Tensor dense = masters_[i].value.defined() ? masters_[i].value : contiguous(parameter);
    updates.push_back({i, parameter_steps_[i] + 1, dense, contiguous(to(gradient, dense.dtype()))});
    const bool copied = !dense.is_same(parameter);
    if (copied || needs_memory(i) || !updates.back().gradient.is_same(gradient)) flush();
    if (copied)
      parameter.copy_from(dense);
    else
      parameter.bump_version();
  }
  flush();
  note_versions();
}

void Optimizer::step_was_skipped() {
  if (!before_) throw Error("[optimizer] there is no step that could have been skipped");
  parameter_steps_ = *std::exchange(before_, std::nullopt);
  --steps_;
}

bool Optimizer::Master::is_written(const Tensor& parameter) const {
  return value.defined() && (storage.lock() != parameter.storage() || version != parameter.storage()->version());
}

void Optimizer::adopt_writes() {
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    Tensor &parameter = parameters_[i].second, &master = masters_[i].value;
    if (!masters_[i].is_written(parameter)) continue;
    const Tensor untouched = equal(to(master, parameter.dtype()), parameter);
    master.copy_from(where(untouched, master, to(parameter, master.dtype())));
  }
}

void Optimizer::refuse_writes() const {
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (masters_[i].is_written(parameters_[i].second))
      throw Error("[optimizer] " + parameters_[i].first +
                  " was written between replays of a recorded step, of which its f32 master would not hear: " +
                  describe(parameters_[i].second));
}

void Optimizer::refuse_changed() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const TensorMeta& before = made_with_[i];
    if (parameter.dtype() != before.dtype || parameter.device() != before.device)
      throw Error("[optimizer] a parameter was moved or cast since the optimiser was made, whose state is still " +
                  std::string(to_string(before.dtype)) + " on " + to_string(before.device) + ": " + name + " " +
                  describe(parameter));
    if (parameter.shape() != before.shape)
      throw Error(
          "[optimizer] a parameter was given another shape since the optimiser was made, whose state is still " +
          to_string(before.shape) + ": " + name + " " + describe(parameter));
    refuse_broadcast(name, parameter);
    const Tensor gradient = parameter.grad();
    if (gradient.defined() && (gradient.shape() != parameter.shape() || gradient.device() != parameter.device()))
      throw Error("[optimizer] a gradient is unlike its parameter: gradient " + describe(gradient) + ", " + name + " " +
                  describe(parameter));
  }
}

void Optimizer::note_versions() {
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const std::shared_ptr<Storage>& storage = parameters_[i].second.storage();
    masters_[i].storage = storage;
    masters_[i].version = storage->version();
  }
}

void Optimizer::zero_grad() {
  for (auto& [name, parameter] : parameters_) parameter.set_grad({});
}

Tensor Optimizer::add_state(std::size_t index, const std::string& what, CallSite) {
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
    if (state[i].first != state_[i].first || !fits(state[i].second, state_[i].second))
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
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < state.size(); ++i) state_[i].second.copy_from(state[i].second);
  steps_ = steps;
  before_.reset();
  parameter_steps_ = parameter_steps.empty() ? std::vector(parameters_.size(), steps) : parameter_steps;
  for (Master& master : masters_) master.storage.reset();
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

Tensor newton_schulz(const Tensor& x, int steps, CallSite) {
  if (x.rank() != 2) throw ShapeError("[newton_schulz] x must be a matrix: x " + describe(x));
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = x.size(0) > x.size(1);  // the smaller of the two products
  Tensor y = tall ? transpose(x, 0, 1) : x;
  y = y / (norm(y) + 1e-7);
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = matmul(y, transpose(y, 0, 1));
    y = a * y + matmul(b * gram + c * matmul(gram, gram), y);
  }
  return tall ? transpose(y, 0, 1) : y;
}

namespace {

struct KnownOptimizer {
  OptimizerKind kind;
  const char* name;
  double usual_rate;
};
constexpr KnownOptimizer known_optimizers[] = {{OptimizerKind::adamw, "adamw", 3e-3},
                                               {OptimizerKind::sgd, "sgd", 0.1},
                                               {OptimizerKind::lion, "lion", 3e-3},
                                               {OptimizerKind::muon, "muon", 2e-2}};

}  // namespace

OptimizerKind parse_optimizer(const std::string& text) {
  for (const KnownOptimizer& known : known_optimizers)
    if (text == known.name) return known.kind;
  throw ValueError("[optimizer] it must be adamw, sgd, lion or muon, but is " + text);
}

std::string to_string(OptimizerKind kind) {
  for (const KnownOptimizer& known : known_optimizers)
    if (kind == known.kind) return known.name;
  return "invalid";
}

double usual_learning_rate(OptimizerKind kind) {
  for (const KnownOptimizer& known : known_optimizers)
    if (kind == known.kind) return known.usual_rate;
  return 0;
}

Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters, CallSite) {
  const MemoryScope scope("gradient_norm", Category::workspace);
  const auto zero_on = [](Device device) { return zeros({}, {.dtype = DType::f64, .device = device}); };
  const Tensor total = zero_on(device_of(parameters));
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

double gradient_norm(const std::vector<Tensor>& parameters, CallSite) {
  return gradient_norm_tensor(parameters).item();
}

}  // namespace poolgrad::nn
