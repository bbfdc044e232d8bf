#include "nn/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "allocator/base/count.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "nn/module.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/graph.h"

namespace poolgrad::nn {

namespace {

/// Throws ShapeError for a broadcast parameter: kernels write each element once.
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
                       fmt::format("rate {}", group.rate) + ", " +
                       fmt::format("decay {}", group.weight_decay.value_or(0.0)) +
                       (group.applies ? "" : ", no predicate"));
  if (parameters_.empty() && !common.may_be_empty)
    throw ValueError(
        "[optimizer] no parameters: named_parameters() has only registered ones, the module's own and those of "
        "add_module()");
  std::unordered_map<std::string_view, const Tensor*> named;
  for (const auto& [name, parameter] : parameters_) {
    if (!parameter.defined()) throw ValueError("[optimizer] the parameter '" + name + "' is undefined");
    const auto [same_name, is_first] = named.try_emplace(name, &parameter);
    if (!is_first)
      throw ValueError("[optimizer] two parameters have the name '" + name + "': " + describe(*same_name->second) +
                       ", " + describe(parameter));
    const auto same = std::ranges::find_if(parameters_, [&](const auto& e) { return e.second.is_same(parameter); });
    if (same->first != name)
      throw ValueError("[optimizer] one tensor is given twice, as '" + same->first + "' and as '" + name +
                       "': " + describe(parameter));
    refuse_broadcast(name, parameter);
    made_with_.emplace_back(parameter);
    Pace& own = paces_.emplace_back(Pace{1.0, common.weight_decay});
    if (common.decay_matrices_only && !(parameter.dim() > 1)) own.weight_decay = 0.0;
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

bool Optimizer::step(const GradientScale& gradient_scale, CallSite) {
  refuse_changed();
  if (std::isnan(gradient_scale.number())) {
    before_.reset();
    return false;
  }
  const NoGradGuard no_grad;
  const MemoryScope scope(Category::temp);
  Graph* const graph = Graph::recording();  // each replay is a step
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
        count_up(steps_);
      });
    for (const Update& done : updates) count([this, index = done.index] { count_up(parameter_steps_[index]); });
    updates.clear();
  };
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [this](std::size_t i) { return !needs_memory(i); });
  for (const std::size_t i : order) {
    Tensor& parameter = parameters_[i].second;
    const Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    // Kernels walk row-major memory. A view is updated through a copy, a half type through its master: neither depends
    // on other parameters.
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
  return true;
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
                  " was written between replays of a recorded step, which its f32 master cannot adopt: " +
                  describe(parameters_[i].second));
}

void Optimizer::refuse_changed() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    const TensorMeta& before = made_with_[i];
    if (parameter.dtype() != before.dtype || parameter.device() != before.device)
      throw Error("[optimizer] a parameter was moved or cast after the optimizer was made, and the state is still " +
                  std::string(to_string(before.dtype)) + " on " + to_string(before.device) + ": " + name + " " +
                  describe(parameter));
    if (parameter.shape() != before.shape)
      throw Error("[optimizer] a parameter was reshaped after the optimizer was made, and the state is still " +
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
  return add_state(index, what, parameters_[index].second.shape());
}

Tensor Optimizer::add_state(std::size_t index, const std::string& what, const Shape& shape, CallSite) {
  const auto& [name, parameter] = parameters_[index];
  const MemoryScope scope(what, Category::optimizer_state);
  Tensor state = zeros(shape, {compute_dtype(parameter.dtype()), parameter.device()});
  state_.emplace_back(name + "." + what, state);
  return state;
}

void Optimizer::check(const NamedTensors& state, std::int64_t steps,
                      const std::vector<std::int64_t>& parameter_steps) const {
  if (state.size() != state_.size())
    throw ValueError("[optimizer] the state has " + std::to_string(state.size()) + " tensors, the optimizer " +
                     std::to_string(state_.size()));
  for (std::size_t i = 0; i < state.size(); ++i)
    if (state[i].first != state_[i].first || !fits(state[i].second, state_[i].second))
      throw ValueError("[optimizer] the state does not fit the optimizer: " + printable(state[i].first) + " " +
                       describe(state[i].second) + ", " + state_[i].first + " " + describe(state_[i].second));
  if (steps < 0 || steps > largest_count)
    throw ValueError("[optimizer] the number of steps is invalid: " + std::to_string(steps));
  if (!parameter_steps.empty() && parameter_steps.size() != parameters_.size())
    throw ValueError("[optimizer] the state has the steps of " + std::to_string(parameter_steps.size()) +
                     " parameters, the optimizer has " + std::to_string(parameters_.size()));
  for (const std::int64_t own : parameter_steps)
    if (own < 0 || own > steps)
      throw ValueError("[optimizer] the steps of a parameter must be between 0 and those of the optimizer: " +
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
  throw ValueError("[optimizer] it must be adamw, sgd, lion or muon, but is " + printable(text));
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

namespace {

void check_limit(double limit) {
  if (!(limit >= 0)) throw ValueError(fmt::format("[clip_scale] must not be negative: limit {}", limit));
}

}  // namespace

GradientScale::GradientScale(const Tensor& of_device) {
  if (of_device.numel() != 1) throw ShapeError("[gradient_scale] it must be one number: " + describe(of_device));
  if (of_device.dtype() != DType::f64) throw DTypeError("[gradient_scale] it must be f64: " + describe(of_device));
  copies_.push_back(of_device.detach());
}

const double* GradientScale::on(Device device) const {
  if (copies_.empty()) return nullptr;
  auto there = std::ranges::find(copies_, device, &Tensor::device);
  if (there == copies_.end()) {
    Tensor copy = Tensor::empty({}, {.dtype = DType::f64, .device = device}).copy_from(copies_.front());
    there = copies_.insert(there, std::move(copy));
  }
  return there->view().as<const double>();
}

Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters, CallSite) {
  const MemoryScope scope("gradient_norm", Category::workspace);
  const auto zero_on = [](Device device) { return zeros({}, {.dtype = DType::f64, .device = device}); };
  const Tensor total = zero_on(device_of(parameters));
  const Stream stream = current_stream(total.device());
  std::vector<std::pair<Device, std::vector<View>>> by_device;
  std::vector<Tensor> gradients;  // hold the memory of the views
  for (const Tensor& parameter : parameters) {
    Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const Device device = gradient.device();
    auto alike = std::ranges::find(by_device, device, &std::pair<Device, std::vector<View>>::first);
    if (alike == by_device.end()) alike = by_device.insert(alike, {device, {}});
    alike->second.push_back(gradient.view());
    gradients.push_back(std::move(gradient));
  }
  for (const auto& [device, views] : by_device) {
    const Tensor sum = device == total.device() ? total : zero_on(device);
    kernels::add_sums_of_squares(current_stream(device), sum.view(), views);
    if (device == total.device()) continue;
    const Tensor moved = Tensor::empty_like(total).copy_from(sum);
    kernels::axpby(stream, total.view(), 1.0, total.view(), 1.0, moved.view());
  }
  kernels::unary(stream, kernels::UnaryOp::sqrt, total.view(), total.view());
  return total;
}

double gradient_norm(const std::vector<Tensor>& parameters, CallSite) {
  return gradient_norm_tensor(parameters).item();
}

double clip_scale(double norm, double limit) {
  check_limit(limit);
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  return limit == 0 || norm <= limit ? 1.0 : limit / norm;
}

Tensor clip_scale(TensorArg norm, double limit) {
  check_limit(limit);
  const NoGradGuard no_grad;
  const MemoryScope scope("clip_scale", Category::workspace);
  const Tensor nothing = *norm - *norm;  // 0, or NaN
  return limit == 0 ? nothing + 1.0 : minimum(full({}, limit, norm->options()) / *norm, 1.0) + nothing;
}

}  // namespace poolgrad::nn
