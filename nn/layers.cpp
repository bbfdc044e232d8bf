#include "nn/layers.h"

#include <cmath>

#include "allocator/error.h"
#include "autograd/autocast.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/rows.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"

namespace poolgrad::nn {

Linear::Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options, const ParameterOptions& parameters,
               CallSite) {
  const double deviation = options.deviation < 0
                               ? 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(inputs, 1)))
                               : options.deviation;
  weight_ = normal_parameter("weight", {outputs, inputs}, deviation, parameters);
  if (options.bias) bias_ = constant_parameter("bias", {outputs}, 0.0, parameters);
}

Tensor Linear::forward(const Tensor& x) {
  return linear(x, parameter_for("linear", weight_, x), parameter_for("linear", bias_, x));
}

Embedding::Embedding(std::int64_t entries, std::int64_t width, double deviation, const ParameterOptions& parameters,
                     CallSite)
    : weight_(normal_parameter("weight", {entries, width}, deviation, parameters)) {}

Tensor Embedding::forward(const Tensor& index) { return embedding(weight_, index); }

LayerNorm::LayerNorm(std::int64_t width, bool bias, double epsilon, const ParameterOptions& parameters, CallSite)
    : weight_(constant_parameter("weight", {width}, 1.0, parameters)), epsilon_(epsilon) {
  if (bias) bias_ = constant_parameter("bias", {width}, 0.0, parameters);
}

Tensor LayerNorm::forward(const Tensor& x) {
  return layer_norm(x, parameter_for("layer_norm", weight_, x), parameter_for("layer_norm", bias_, x), epsilon_);
}

RMSNorm::RMSNorm(std::int64_t width, double epsilon, const ParameterOptions& parameters, CallSite)
    : weight_(constant_parameter("weight", {width}, 1.0, parameters)), epsilon_(epsilon) {}

Tensor RMSNorm::forward(const Tensor& x) { return rms_norm(x, parameter_for("rms_norm", weight_, x), epsilon_); }

Dropout::Dropout(double p, Generator& generator) : p_(p), generator_(&generator) {
  if (!(p >= 0.0 && p < 1.0)) throw ValueError("[dropout] p must be in [0, 1), but is " + std::to_string(p));
}

Tensor Dropout::forward(const Tensor& x) { return forward(x, {}); }

Tensor Dropout::forward(const Tensor& x, SequencePart part, CallSite) {
  if (!training() || p_ == 0.0) return x;
  return part.whole > 0 ? dropout(x, p_, *generator_, part) : dropout(x, p_, *generator_);
}

FeedForward::FeedForward(std::int64_t width, std::int64_t hidden, FeedForwardOptions options,
                         const ParameterOptions& parameters, CallSite)
    : kind_(options.kind),
      up_(width, hidden, {.bias = options.bias}, parameters),
      down_(hidden, width, {.bias = options.bias, .deviation = options.down_deviation}, parameters) {
  add_module("up", up_);
  if (kind_ == FeedForwardKind::swiglu)
    add_module("gate", gate_.emplace(width, hidden, LinearOptions{.bias = options.bias}, parameters));
  add_module("down", down_);
}

Tensor FeedForward::forward(const Tensor& x) {
  if (kind_ == FeedForwardKind::swiglu) return down_(silu_mul((*gate_)(x), up_(x)));
  return down_(gelu(up_(x), kind_ == FeedForwardKind::gelu ? GeluKind::tanh : GeluKind::exact));
}

Lambda::Lambda(std::function<Tensor(const Tensor&)> function) : function_(std::move(function)) {
  if (!function_) throw ValueError("[lambda] a layer needs a function");
}

Layer& Sequential::add(std::unique_ptr<Layer> layer, const std::string& name) {
  if (layer == nullptr) throw ValueError("[sequential] part " + std::to_string(layers_.size()) + " is no layer");
  add_module(name.empty() ? std::to_string(layers_.size()) : name, *layer);
  return *layers_.emplace_back(std::move(layer));
}

Layer& Sequential::add(std::function<Tensor(const Tensor&)> function, const std::string& name) {
  return add(std::make_unique<Lambda>(std::move(function)), name);
}

Layer& Sequential::add(Tensor (*function)(TensorArg, GeluKind), const std::string& name) {
  if (function == nullptr) throw ValueError("[lambda] a layer needs a function");
  return add([function](const Tensor& x) { return function(x, GeluKind::exact); }, name);
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const std::unique_ptr<Layer>& layer : layers_) y = (*layer)(y);
  return y;
}

std::vector<Layer*> Sequential::layers() const {
  std::vector<Layer*> layers;
  for (const std::unique_ptr<Layer>& layer : layers_) layers.push_back(layer.get());
  return layers;
}

}  // namespace poolgrad::nn
