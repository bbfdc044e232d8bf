// Layers: one operator each, with its parameters; the feed-forward layer, and chains of layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/operators/rows.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "nn/module.h"

namespace poolgrad::nn {

struct LinearOptions {
  bool bias = true;
  /// Standard deviation of the initial weight; negative means 1 / sqrt(inputs). The initial bias is 0.
  double deviation = -1.0;
};

/// (..., inputs) -> (..., outputs): x weight^T + bias, with weight (outputs, inputs) and bias (outputs). Parameters are
/// cast to the dtype of x where it differs, so f32 parameters serve bf16 activations.
class Linear : public Layer {
 public:
  Linear(std::int64_t inputs, std::int64_t outputs, LinearOptions options = {}, const ParameterOptions& parameters = {},
         CallSite = {});

  Tensor forward(const Tensor& x) override;

  const Tensor& weight() const { return weight_; }
  /// Undefined without a bias.
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_, bias_;
};

/// i64 (...) -> (..., width): row `index` of weight (entries, width), which starts normal with the given deviation.
class Embedding : public Layer {
 public:
  Embedding(std::int64_t entries, std::int64_t width, double deviation = 1.0, const ParameterOptions& parameters = {},
            CallSite = {});

  /// IndexError for an index outside [0, entries).
  Tensor forward(const Tensor& index) override;

  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_;
};

/// (x - mean) / sqrt(var + epsilon) * weight + bias over the last dimension (Ba et al. 2016). weight starts at 1, bias
/// (optional) at 0.
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(std::int64_t width, bool bias = true, double epsilon = 1e-5,
                     const ParameterOptions& parameters = {}, CallSite = {});

  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_, bias_;
  double epsilon_;
};

/// x / sqrt(mean(x^2) + epsilon) * weight over the last dimension (Zhang & Sennrich 2019). weight starts at 1.
class RMSNorm : public Layer {
 public:
  explicit RMSNorm(std::int64_t width, double epsilon = 1e-6, const ParameterOptions& parameters = {}, CallSite = {});

  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_;
  double epsilon_;
};

/// In training mode zeroes each element with probability p in [0, 1) and scales the rest by 1 / (1 - p); otherwise, and
/// for p == 0, the identity. Draws from `generator`, which must outlive the module.
class Dropout : public Layer {
 public:
  /// Throws ValueError for p outside [0, 1).
  explicit Dropout(double p, Generator& generator = default_generator());

  Tensor forward(const Tensor& x) override;
  /// x (B, n, ...) is a part of a sequence; zeroes the same elements as one call for the whole sequence. If the part's
  /// `whole` is 0, x is a sequence by itself.
  Tensor forward(const Tensor& x, SequencePart part, CallSite = {});

 private:
  double p_;
  Generator* generator_;
};

/// gelu: down(gelu(up x)), gelu_exact by erf, gelu by its tanh approximation (Hendrycks & Gimpel 2016).
/// swiglu: down(silu(gate x) * up x) (Shazeer 2020).
enum class FeedForwardKind { gelu, gelu_exact, swiglu };

struct FeedForwardOptions {
  FeedForwardKind kind = FeedForwardKind::gelu;
  bool bias = true;
  /// Deviation of the initial `down` weight; negative means 1 / sqrt(hidden). 0 starts the block as the identity.
  double down_deviation = -1.0;
};

/// (..., width) -> (..., width) through `hidden` units.
class FeedForward : public Layer {
 public:
  FeedForward(std::int64_t width, std::int64_t hidden, FeedForwardOptions options = {},
              const ParameterOptions& parameters = {}, CallSite = {});

  Tensor forward(const Tensor& x) override;

 private:
  FeedForwardKind kind_;
  Linear up_;
  std::optional<Linear> gate_;
  Linear down_;
};

/// A function as a layer: an activation, a change of shape.
class Lambda : public Layer {
 public:
  /// Throws ValueError for an empty function.
  explicit Lambda(std::function<Tensor(const Tensor&)> function);

  Tensor forward(const Tensor& x) override { return function_(x); }

 private:
  std::function<Tensor(const Tensor&)> function_;
};

// Operators of autograd/ with their options, as parts of a Sequential, under PyTorch's names.

struct ReLU {
  Tensor operator()(const Tensor& x) const { return relu(x); }
};
struct LeakyReLU {
  double negative_slope = 0.01;
  Tensor operator()(const Tensor& x) const { return leaky_relu(x, negative_slope); }
};
struct GELU {
  GeluKind kind = GeluKind::exact;
  Tensor operator()(const Tensor& x) const { return gelu(x, kind); }
};
struct SiLU {
  Tensor operator()(const Tensor& x) const { return silu(x); }
};
struct Softplus {
  Tensor operator()(const Tensor& x) const { return softplus(x); }
};
struct Sigmoid {
  Tensor operator()(const Tensor& x) const { return sigmoid(x); }
};
struct Tanh {
  Tensor operator()(const Tensor& x) const { return tanh(x); }
};
struct Softmax {
  std::int64_t dim = -1;
  Tensor operator()(const Tensor& x) const { return softmax(x, dim); }
};
struct LogSoftmax {
  std::int64_t dim = -1;
  Tensor operator()(const Tensor& x) const { return log_softmax(x, dim); }
};
/// Merges dimensions [first, last]; by default all but the batch's.
struct Flatten {
  std::int64_t first = 1, last = -1;
  Tensor operator()(const Tensor& x) const { return flatten(x, first, last); }
};

/// Layers one after another; without parts, the identity. Owns its layers; functions of a tensor become Lambdas. Parts
/// are named "0", "1", ... by position, or as add() says.
///
///   nn::Sequential mlp(std::make_unique<nn::Linear>(784, 128), nn::GELU(), std::make_unique<nn::Linear>(128, 10));
class Sequential : public Layer {
 public:
  template <class... Parts>
  explicit Sequential(Parts... parts) {
    (add(std::move(parts)), ...);
  }

  /// Appends a part and returns it. Throws ValueError for a null pointer, and the errors of add_module() for the name.
  Layer& add(std::unique_ptr<Layer> layer, const std::string& name = "");
  Layer& add(std::function<Tensor(const Tensor&)> function, const std::string& name = "");
  /// Appends gelu itself, with its default kind.
  Layer& add(Tensor (*function)(TensorArg, GeluKind), const std::string& name = "");

  Tensor forward(const Tensor& x) override;

  /// Returns the layers in order, for checkpoint_sequential().
  std::vector<Layer*> layers() const;

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace poolgrad::nn
