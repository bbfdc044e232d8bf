#include "nn/module.h"

#include <algorithm>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "kernels/random.h"
#include "tensor/grad_mode.h"
#include "tensor/safetensors.h"

namespace poolgrad::nn {

void Module::collect(const std::string& prefix, NamedTensors& found) const {
  for (const auto& [name, parameter] : parameters_) {
    const bool known =
        std::any_of(found.begin(), found.end(), [&](const auto& entry) { return entry.second.is_same(parameter); });
    if (!known) found.emplace_back(prefix + name, parameter);
  }
  for (const auto& [name, module] : modules_) module->collect(prefix + name + ".", found);
}

NamedTensors Module::named_parameters() const {
  NamedTensors found;
  collect("", found);
  return found;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (auto& [name, parameter] : named_parameters()) result.push_back(parameter);
  return result;
}

std::int64_t Module::parameter_count() const {
  std::int64_t total = 0;
  for (const Tensor& parameter : parameters()) total += parameter.count();
  return total;
}

namespace {

auto named(const NamedTensors& state, const std::string& name) {
  return std::find_if(state.begin(), state.end(), [&](const auto& entry) { return entry.first == name; });
}

}  // namespace

void Module::check(const NamedTensors& state) const {
  const NamedTensors own = named_parameters();
  std::string faults;
  for (const auto& [name, parameter] : own) {
    const auto entry = named(state, name);
    if (entry == state.end())
      faults += "; missing " + name;
    else if (entry->second.shape() != parameter.shape() || entry->second.dtype() != parameter.dtype())
      faults += "; " + name + " is " + describe(entry->second) + " where the module has " + describe(parameter);
  }
  for (const auto& [name, tensor] : state)
    if (named(own, name) == own.end()) faults += "; unexpected " + name;
  if (!faults.empty()) throw ValueError("[load] the state does not fit the module: " + faults.substr(2));
}

void Module::load(const NamedTensors& state) {
  check(state);
  NoGradGuard no_grad;
  for (auto& [name, parameter] : named_parameters()) parameter.copy_from(named(state, name)->second);
}

void Module::save_file(const std::string& path) const { save_safetensors(path, {named_parameters(), {}}); }

void Module::load_file(const std::string& path) {
  const SafetensorsReader file(path);
  file.outline().check_complete();
  check(file.outline().tensors);
  for (const auto& [name, parameter] : named_parameters()) file.read(name, parameter);
}

void Module::train(bool on) {
  training_ = on;
  for (auto& [name, module] : modules_) module->train(on);
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.set_grad({});
}

Tensor Module::normal_parameter(const std::string& name, const Shape& shape, double deviation,
                                const ParameterOptions& options) {
  Tensor parameter = constant_parameter(name, shape, 0.0, options);
  if (deviation != 0.0)
    kernels::normal(current_stream(options.device), options.generator->take(parameter.count()), parameter.view(), 0.0,
                    deviation);
  return parameter;
}

Tensor Module::constant_parameter(const std::string& name, const Shape& shape, double value,
                                  const ParameterOptions& options) {
  const MemoryScope scope(name, Category::parameter);
  Tensor parameter = Tensor::empty(shape, {options.dtype, options.device});
  parameter.fill(value);
  parameter.set_requires_grad();
  share_parameter(name, parameter);
  return parameter;
}

void Module::share_parameter(const std::string& name, const Tensor& parameter) {
  check_name(name);
  parameters_.emplace_back(name, parameter);
}

void Module::add_module(const std::string& name, Module& module) {
  check_name(name);
  modules_.emplace_back(name, &module);
}

void Module::check_name(const std::string& name) const {
  const auto same = [&](const auto& entry) { return entry.first == name; };
  if (std::any_of(parameters_.begin(), parameters_.end(), same) || std::any_of(modules_.begin(), modules_.end(), same))
    throw ValueError("[module] a parameter or a submodule is called '" + name + "' already");
  if (name.empty() || name.find('.') != std::string::npos)
    throw ValueError("[module] a name must not be empty or have a dot, which separates the names of a path: '" + name +
                     "'");
}

}  // namespace poolgrad::nn
