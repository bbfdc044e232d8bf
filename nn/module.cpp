#include "nn/module.h"

#include <algorithm>

#include "allocator/base/printable.h"
#include "allocator/base/salted_map.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/engine/tape_record.h"
#include "autograd/operators/views.h"
#include "kernels/random.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"

namespace poolgrad::nn {

namespace {

auto first_name_of(const Tensor& tensor, const NamedTensors& all) {
  return std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.second.is_same(tensor); });
}

/// Returns each tensor once, under the first of its names.
NamedTensors each_once(const NamedTensors& all) {
  NamedTensors found;
  for (const auto& [name, tensor] : all)
    if (first_name_of(tensor, found) == found.end()) found.emplace_back(name, tensor);
  return found;
}

}  // namespace

const Tensor* entry_of(const NamedTensors& state, const std::string& name) {
  for (const auto& [known, tensor] : state)
    if (known == name) return &tensor;
  return nullptr;
}

bool fits(const Tensor& given, const Tensor& own) {
  return given.defined() && given.shape() == own.shape() && given.dtype() == own.dtype();
}

Device device_of(const std::vector<Tensor>& tensors) { return tensors.empty() ? cpu : tensors.front().device(); }

void Module::collect(NamedTensors Module::*kind, const std::string& prefix, NamedTensors& all) const {
  for (const auto& [name, tensor] : this->*kind) all.emplace_back(prefix + name, tensor);
  for (const auto& [name, module] : modules_) module->collect(kind, prefix + name + ".", all);
}

NamedTensors Module::all_names() const {
  NamedTensors all;
  collect(&Module::parameters_, "", all);
  collect(&Module::buffers_, "", all);
  return all;
}

NamedTensors Module::named_parameters() const {
  NamedTensors all;
  collect(&Module::parameters_, "", all);
  return each_once(all);
}

NamedTensors Module::named_buffers() const {
  NamedTensors all;
  collect(&Module::buffers_, "", all);
  return each_once(all);
}

NamedTensors Module::named_tensors() const { return each_once(all_names()); }

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (auto& [name, parameter] : named_parameters()) result.push_back(parameter);
  return result;
}

std::int64_t Module::parameter_count() const {
  std::int64_t total = 0;
  for (const Tensor& parameter : parameters()) total += parameter.numel();
  return total;
}

namespace {

/// Describes the first faults of a state and counts the others: a file may have a million.
class Faults {
 public:
  void add(const std::string& fault) {
    if (++count_ <= most_named) text_ += (text_.empty() ? "" : "; ") + fault;
  }
  void refuse() const {
    if (count_ == 0) return;
    const std::string more = count_ > most_named ? "; and " + std::to_string(count_ - most_named) + " more" : "";
    throw ValueError("[load] the state does not fit the module: " + text_ + more);
  }

 private:
  static constexpr std::size_t most_named = 8;
  std::string text_;
  std::size_t count_ = 0;
};

}  // namespace

void Module::check(const NamedTensors& state) const {
  const NamedTensors all = all_names(), own = each_once(all);
  SaltedTextMap<const Tensor*> by_name;
  for (const auto& [name, tensor] : state) by_name.try_emplace(name, &tensor);
  Faults faults;
  for (const auto& [name, tensor] : own) {
    const auto entry = by_name.find(name);
    if (entry == by_name.end())
      faults.add("missing " + name);
    else if (!fits(*entry->second, tensor))
      faults.add(name + " is " + describe(*entry->second) + " where the module has " + describe(tensor));
    else if (repeats_elements(tensor.geometry()))
      faults.add("several elements of " + name + " share one place, " + describe(tensor) + " (a broadcast)");
  }
  SaltedTexts known;
  for (const auto& [name, tensor] : own) known.insert(name);
  for (const auto& [name, tensor] : state) {
    if (by_name.find(name)->second != &tensor) {
      faults.add(printable(name) + " appears twice");
    } else if (!known.contains(name)) {
      const Tensor* const tied = entry_of(all, name);
      faults.add("unexpected " + printable(name) +
                 (tied != nullptr ? ", which is another name of " + first_name_of(*tied, own)->first : ""));
    }
  }
  faults.refuse();
}

void Module::load(const NamedTensors& state) {
  check(state);
  NoGradGuard no_grad;
  const NamedTensors own = named_tensors();
  std::vector<Tensor> sources;  // a copy if it is memory of another tensor, which may be written first
  for (const auto& [name, tensor] : own) {
    const Tensor& source = *entry_of(state, name);
    const bool is_anothers = std::any_of(own.begin(), own.end(), [&, &tensor = tensor](const auto& other) {
      return !other.second.is_same(tensor) && other.second.shares_storage_with(source);
    });
    sources.push_back(is_anothers ? source.copy() : source);
  }
  for (std::size_t i = 0; i < own.size(); ++i) Tensor(own[i].second).copy_from(sources[i]);
}

void Module::save_file(const std::string& path, CallSite) const {
  const NamedTensors own = named_tensors();
  if (own.empty())
    throw ValueError("[save] the module has no tensors to save: a member that is a module needs add_module(): " + path);
  save_safetensors(path, {own, {}});
}

void Module::load_file(const std::string& path, CallSite) {
  const SafetensorsReader file(path);
  file.outline().check_complete();
  check(file.outline().tensors);
  for (const auto& [name, tensor] : named_tensors()) file.read(name, tensor);
}

void Module::train(bool on) {
  training_ = on;
  for (auto& [name, module] : modules_) module->train(on);
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.set_grad({});
}

void Module::set_trainable(bool on) {
  for (const auto& [name, parameter] : named_parameters())
    if (!on && !parameter.is_leaf())
      throw Error("[module] the result of an operator cannot be frozen: " + name + " " + describe(parameter));
  for (Tensor& parameter : parameters()) {
    parameter.set_requires_grad(on);
    if (!on) parameter.set_grad({});
  }
}

Tensor Module::normal_parameter(const std::string& name, const Shape& shape, double deviation,
                                const ParameterOptions& options, CallSite) {
  Tensor parameter = constant_parameter(name, shape, 0.0, options);
  if (deviation != 0.0)
    kernels::normal(current_stream(options.device), options.numbers().take(parameter.numel()), parameter.view(), 0.0,
                    deviation);
  return parameter;
}

Tensor Module::constant_parameter(const std::string& name, const Shape& shape, double value,
                                  const ParameterOptions& options, CallSite) {
  const MemoryScope scope(name, Category::parameter);
  Tensor parameter = Tensor::empty(shape, {options.dtype, options.device});
  parameter.fill(value);
  parameter.set_requires_grad();
  share_parameter(name, parameter);
  return parameter;
}

void Module::share_parameter(const std::string& name, const Tensor& parameter) {
  check_name(name);
  if (!parameter.defined()) throw ValueError("[module] the parameter '" + name + "' is undefined");
  if (!parameter.is_leaf() || !is_floating(parameter.dtype()))
    throw ValueError("[module] a parameter is a floating tensor, and a leaf: " + name + " " + describe(parameter) +
                     (parameter.is_leaf() ? "" : ", the result of an operator"));
  parameters_.emplace_back(name, parameter);
}

Tensor Module::register_buffer(const std::string& name, const Tensor& tensor) {
  check_name(name);
  if (!tensor.defined() || tensor.requires_grad())
    throw Error("[module] a buffer is a tensor that requires no gradient: " + name + " " + describe(tensor));
  return buffers_.emplace_back(name, tensor).second;
}

void Module::add_module(const std::string& name, Module& module) {
  check_name(name);
  modules_.emplace_back(name, &module);
}

void Module::check_name(const std::string& name) const {
  const auto same = [&](const auto& entry) { return entry.first == name; };
  if (std::any_of(parameters_.begin(), parameters_.end(), same) ||
      std::any_of(buffers_.begin(), buffers_.end(), same) || std::any_of(modules_.begin(), modules_.end(), same))
    throw ValueError("[module] a parameter, a buffer or a submodule is called '" + name + "' already");
  if (name.empty() || name.find('.') != std::string::npos)
    throw ValueError("[module] a name must not be empty or have a dot, which separates the names of a path: '" + name +
                     "'");
}

namespace {

/// Replaces every tensor, and its gradient, by change(tensor), unless that returns the same tensor.
void replace_tensors(const Module& module, const std::function<Tensor(const Tensor&)>& change) {
  const NoGradGuard no_grad;
  struct Change {
    Tensor tensor, now, gradient;
  };
  std::vector<Change> changes;
  for (const auto& [name, tensor] : module.named_tensors()) {
    const MemoryScope scope(name, Category::parameter);
    const Tensor now = change(tensor);
    if (now.is_same(tensor)) continue;
    const MemoryScope of_gradient(Category::gradient);
    const Tensor gradient = tensor.grad();
    changes.push_back({tensor, now, gradient.defined() ? change(gradient) : gradient});
  }
  for (Change& each : changes) {  // all new memory is allocated
    swap_tensors(each.tensor, each.now);
    if (TapeRecord* record = tape_record(each.now)) record->leave_graphs();
    each.tensor.set_grad_record(each.now.grad_record());
    each.now.set_grad_record(nullptr);
    each.tensor.set_grad(each.gradient);
  }
}

}  // namespace

void to(Module& module, Device device, CallSite) {
  replace_tensors(module, [device](const Tensor& tensor) { return poolgrad::to(tensor, device); });
}

void to(Module& module, DType dtype, std::int64_t least_dim, CallSite) {
  if (!is_floating(dtype))
    throw DTypeError("[to] parameters are floating, which " + std::string(to_string(dtype)) + " is not");
  replace_tensors(module, [&](const Tensor& tensor) {
    return is_floating(tensor.dtype()) && tensor.dim() >= least_dim ? poolgrad::to(tensor, dtype) : tensor;
  });
}

Substitution::Substitution(const Module& module, const NamedTensors& tensors)
    : no_second_run_("other tensors substitute the parameters of a module (Substitution, functional_call)") {
  const NamedTensors own = module.named_tensors();
  std::string faults;
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (const auto& [name, tensor] : tensors) {
    const Tensor* const entry = entry_of(own, name);
    if (entry == nullptr) {
      faults += "; the module has no " + name;
    } else if (!fits(tensor, *entry) || tensor.device() != entry->device()) {
      faults += "; " + name + " is " + describe(tensor) + " where the module has " + describe(*entry);
    } else {
      // Another handle with the same memory and gradient record, so that `tensor` itself does not change.
      Tensor stand_in = tensor.detach();
      stand_in.set_grad_record(tensor.grad_record());
      pairs.emplace_back(*entry, std::move(stand_in));
    }
  }
  if (!faults.empty()) throw ValueError("[functional_call] the tensors do not fit the module: " + faults.substr(2));
  swapped_ = std::move(pairs);
  for (const auto& [tensor, stand_in] : swapped_) swap_tensors(tensor, stand_in);
}

Substitution::~Substitution() {
  for (auto pair = swapped_.rbegin(); pair != swapped_.rend(); ++pair) swap_tensors(pair->first, pair->second);
}

Tensor functional_call(const Module& module, const NamedTensors& tensors, const std::function<Tensor()>& call,
                       CallSite) {
  const Substitution substitution(module, tensors);
  return call();
}

Tensor functional_call(Layer& layer, const NamedTensors& tensors, const Tensor& x, CallSite) {
  return functional_call(layer, tensors, [&] { return layer(x); });
}

void SequenceMixer::set_part(const SequencePart& part) {
  if (part.positions.count > 0)
    throw ValueError("[sequence_mixer] this mixer needs whole sequences, but gets a part of their positions");
}

}  // namespace poolgrad::nn
