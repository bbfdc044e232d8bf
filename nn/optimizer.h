// Optimizers and clipping by the global norm.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/engine/node.h"
#include "nn/gradient_scale.h"
#include "nn/module.h"

namespace poolgrad::nn {

using ParameterPredicate = std::function<bool(const std::string& name, const Tensor& parameter)>;

/// Parameters with their own learning rate or weight decay: `.groups = {{.applies = is_a_norm, .weight_decay = 0.0}}`.
/// If several groups apply, the first counts.
struct ParameterGroup {
  ParameterPredicate applies;
  double rate = 1.0;                        // times the optimizer's learning rate
  std::optional<double> weight_decay = {};  // in place of the optimizer's own
};

/// The common part of optimizers: the parameters, the step count, and the state that a checkpoint holds. A parameter of
/// a half type has an f32 master weight, unless options.master_weights is false. Steps update the master, where
/// rounding does not lose them, and the parameter is the rounded master. The next step adopts an element that other
/// code has written.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, in one pass over its memory and together with others. Multiplies each
  /// gradient by `gradient_scale` on the way (clipping, averaging). A scale that is NaN skips the step: parameters,
  /// state and counts stay as they are. Returns false for a skipped step. The host does not wait for a scale on the
  /// device, and returns true: a caller that reads NaN there afterwards calls step_was_skipped().
  ///
  /// Throws the errors of kernels. Updates made before that are counted, and gradients stay as they are.
  /// While a Graph records, nothing is counted: each replay is a step at the learning rate set then. Throws Error,
  /// changing nothing, for a parameter that was moved, cast or reshaped since the optimizer was made, and for a
  /// gradient of another shape or device.
  bool step(const GradientScale& gradient_scale = 1.0, CallSite = {});
  /// Takes the last step out of the counts, after its scale on the device was read as NaN. Throws Error if no step was
  /// taken since the last call.
  void step_was_skipped();
  /// Sets every gradient to none.
  void zero_grad();

  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double rate) { learning_rate_ = rate; }
  /// Steps taken so far.
  std::int64_t steps() const { return steps_; }
  /// Returns for each parameter the number of steps in which it had a gradient and was updated, in the order of the
  /// parameters.
  const std::vector<std::int64_t>& parameter_steps() const { return parameter_steps_; }

  /// Returns the state tensors, "<parameter>.<name>", which share memory with the optimizer.
  const NamedTensors& state() const { return state_; }
  /// Copies `state` in and sets the step counts. Without `parameter_steps`, each parameter has taken all steps. Throws
  /// ValueError, changing nothing, if names, shapes, dtypes or the number of counts do not fit, and for counts that are
  /// negative or above `steps`.
  void load(const NamedTensors& state, std::int64_t steps, const std::vector<std::int64_t>& parameter_steps = {});
  /// Throws the errors of load().
  void check(const NamedTensors& state, std::int64_t steps,
             const std::vector<std::int64_t>& parameter_steps = {}) const;

 protected:
  struct Common {
    double learning_rate = 0, weight_decay = 0;
    bool decay_matrices_only = false, master_weights = false;
    const std::vector<ParameterGroup>& groups;
    bool may_be_empty = false;
  };
  /// Throws ValueError for no parameters, an undefined one, two of one name, one tensor twice, and a group without a
  /// predicate or with a negative number. Throws ShapeError for a parameter whose elements share places (a broadcast).
  /// Accepts frozen parameters. With `master_weights`, the state holds the f32 value of each parameter of a half type
  /// as "<parameter>.master".
  Optimizer(NamedTensors parameters, const Common& common, CallSite = {});
  /// The rates of one parameter, by its group.
  struct Pace {
    double rate, weight_decay;  // rate is a factor of the optimizer's learning rate
    auto operator<=>(const Pace&) const = default;
  };
  const Pace& pace(std::size_t index) const { return paces_[index]; }
  /// Zeros shaped like parameter `index` in its compute dtype, tagged Category::optimizer_state.
  Tensor add_state(std::size_t index, const std::string& what, CallSite = {});
  /// The same with a given shape.
  Tensor add_state(std::size_t index, const std::string& what, const Shape& shape, CallSite = {});
  const NamedTensors& parameters() const { return parameters_; }
  /// Parameter `index` at its own step number `step`, this one included. Both tensors are row-major.
  struct Update {
    std::size_t index;
    std::int64_t step;
    Tensor parameter, gradient;
  };
  virtual void update(std::span<const Update> updates, const GradientScale& scale) = 0;
  /// Returns whether update() allocates for this parameter. Such a parameter is updated by itself, after all others. If
  /// memory runs out, it keeps its value, and the updates before it are counted.
  virtual bool needs_memory(std::size_t) const { return false; }

 private:
  /// Copies values that other code wrote into parameters to their masters.
  void adopt_writes();
  /// Throws Error if there are such writes: a replay cannot adopt them.
  void refuse_writes() const;
  /// Throws Error if the state or a gradient does not fit its parameter.
  void refuse_changed() const;
  void note_versions();

  NamedTensors parameters_;
  std::vector<TensorMeta> made_with_;  // shape, dtype and device of each parameter
  std::vector<Pace> paces_;
  /// The f32 value of a parameter (undefined without one), and the memory and version of its rounded copy.
  struct Master {
    Tensor value;
    std::weak_ptr<Storage> storage;
    std::uint64_t version = 0;

    bool is_written(const Tensor& parameter) const;
  };
  std::vector<Master> masters_;
  NamedTensors state_;
  double learning_rate_;
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> parameter_steps_;
  std::optional<std::vector<std::int64_t>> before_;  // counts of the parameters before the last step
};

struct SGDOptions {
  double learning_rate = 1e-2;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;  // added to the gradient
  bool nesterov = false;
  bool master_weights = true;  // f32 values of f16 and bf16 parameters
  std::vector<ParameterGroup> groups = {};
};

/// g' = g + weight_decay * p; b = g' at the parameter's first step, momentum * b + (1 - dampening) * g' afterwards; p
/// -= rate * b, or rate * (g' + momentum * b) with Nesterov's momentum (Sutskever et al. 2013).
class SGD : public Optimizer {
 public:
  /// Throws ValueError for negative options, and for Nesterov without momentum or with dampening.
  explicit SGD(NamedTensors parameters, SGDOptions options = {}, CallSite = {});

 private:
  void update(std::span<const Update> updates, const GradientScale& scale) override;

  SGDOptions options_;
  std::vector<Tensor> momentum_;  // empty without momentum
};

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;              // v^ is from the largest v so far (Reddi et al. 2018)
  bool decay_matrices_only = false;  // no decay for norms and biases (one-dimensional parameters)
  bool master_weights = true;        // f32 values of f16 and bf16 parameters
  std::vector<ParameterGroup> groups = {};
};

/// m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, p -= rate * (weight_decay * p + m^ / (sqrt(v^) +
/// epsilon)) with m^ and v^ corrected for the steps that the parameter itself has taken (Loshchilov & Hutter 2019).
/// Moments are in the compute dtype.
class AdamW : public Optimizer {
 public:
  /// Throws ValueError for negative options and betas outside [0, 1).
  explicit AdamW(NamedTensors parameters, AdamWOptions options = {}, CallSite = {});

 protected:
  /// Keeps moments only for parameters for which `takes` returns true. With `coupled`, adds the decay to the gradient.
  AdamW(NamedTensors parameters, AdamWOptions options, const char* op, const ParameterPredicate& takes,
        bool coupled = false);
  void update(std::span<const Update> updates, const GradientScale& scale) override;

 private:
  AdamWOptions options_;
  bool coupled_;
  std::vector<Tensor> first_, second_, largest_;  // largest_ is empty without amsgrad
};

struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // added to the gradient (L2)
  bool amsgrad = false;
  bool decay_matrices_only = false;
  bool master_weights = true;
  std::vector<ParameterGroup> groups = {};
};

/// AdamW with g' = g + weight_decay * p in place of g, and no other decay (Kingma & Ba 2015).
class Adam : public AdamW {
 public:
  /// Throws as AdamW.
  explicit Adam(NamedTensors parameters, AdamOptions options = {}, CallSite = {});
};

struct RMSpropOptions {
  double learning_rate = 1e-2;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  // added to the gradient (L2)
  double momentum = 0.0;
  bool centered = false;  // subtract the square of the mean gradient (Graves 2013)
  bool decay_matrices_only = false;
  bool master_weights = true;
  std::vector<ParameterGroup> groups = {};
};

/// g' = g + weight_decay * p, v = alpha v + (1 - alpha) g'^2, b = momentum * b + g' / (sqrt(v) + epsilon), p -= rate *
/// b (Tieleman & Hinton 2012). Centered: v - m^2 in place of v, with m = alpha m + (1 - alpha) g'.
class RMSprop : public Optimizer {
 public:
  /// Throws ValueError for negative options and for alpha outside [0, 1).
  explicit RMSprop(NamedTensors parameters, RMSpropOptions options = {}, CallSite = {});

 private:
  void update(std::span<const Update> updates, const GradientScale& scale) override;

  RMSpropOptions options_;
  std::vector<Tensor> square_, mean_, momentum_;  // mean_ and momentum_ are empty unless asked for
};

struct AdafactorOptions {
  double learning_rate = 1e-2;  // relative to the size of a parameter
  double beta2_decay = -0.8;
  std::optional<double> epsilon1 = {};  // least root of a variance; none: 2^-23 in f32, 2^-52 in f64
  double epsilon2 = 1e-3;               // least size of a parameter
  double clip_threshold = 1.0;          // of the root mean square of a direction
  double weight_decay = 0.0;
  bool decay_matrices_only = false;
  bool master_weights = true;
  std::vector<ParameterGroup> groups = {};
};

/// Keeps the variances of a matrix as row and column means: m + n numbers for m x n (Shazeer & Stern 2018; PyTorch's
/// Adafactor). At step t, V = (1 - t^c) V + t^c g^2 with c = beta2_decay, and u = g / sqrt(V), divided by its root mean
/// square over clip_threshold where that is above 1. p -= rate * weight_decay * p + min(rate, 1 / sqrt(t)) *
/// max(rms(p), epsilon2) * u. Of more than two dimensions the last two are factored; vectors keep all variances.
class Adafactor : public Optimizer {
 public:
  /// Throws ValueError for negative options, a beta2_decay above 0 and a clip_threshold below 1.
  explicit Adafactor(NamedTensors parameters, AdafactorOptions options = {}, CallSite = {});

 private:
  void update(std::span<const Update> updates, const GradientScale& scale) override;
  bool needs_memory(std::size_t) const override { return true; }

  AdafactorOptions options_;
  std::vector<Tensor> rows_, columns_, variances_;  // undefined if the parameter uses the other kind
};

struct LionOptions {
  double learning_rate = 1e-4;  // a tenth of AdamW's, with ten times the decay; small models: usual_learning_rate()
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0.1;
  bool decay_matrices_only = false;
  bool master_weights = true;
  std::vector<ParameterGroup> groups = {};
};

/// p -= rate * (sign(beta1 m + (1 - beta1) g) + weight_decay * p), then m = beta2 m + (1 - beta2) g (Chen et al. 2023).
/// Every element moves by the rate. Keeps one moment.
class Lion : public Optimizer {
 public:
  /// Throws ValueError for negative options and betas outside [0, 1).
  explicit Lion(NamedTensors parameters, LionOptions options = {}, CallSite = {});

 private:
  void update(std::span<const Update> updates, const GradientScale& scale) override;

  bool needs_memory(std::size_t) const override { return true; }

  LionOptions options_;
  std::vector<Tensor> momentum_;
};

struct MuonOptions {
  AdamWOptions adamw = {};  // of all other parameters; learning rate, decay and groups are those of the matrices
  double momentum = 0.95;
  bool nesterov = true;
  int newton_schulz_steps = 5;
  /// Selects matrices that AdamW updates because they are no maps between activations: embeddings, heads.
  ParameterPredicate left_to_adamw = {};
};

/// For matrices: m = momentum * m + (1 - momentum) * g, and p -= rate * (weight_decay * p + 0.2 sqrt(max(rows,
/// columns)) O), where O is newton_schulz() of m, or with Nesterov's momentum of momentum * m + (1 - momentum) * g
/// (Jordan et al. 2024). The factor gives an update the size of AdamW's, so that one rate serves both (Liu et al.
/// 2025).
class Muon : public AdamW {
 public:
  /// Throws ValueError as AdamW, for a momentum outside [0, 1), and for less than one step of Newton and Schulz.
  explicit Muon(NamedTensors parameters, MuonOptions options = {}, CallSite = {});

 private:
  void update(std::span<const Update> updates, const GradientScale& scale) override;
  bool needs_memory(std::size_t index) const override { return momentum_[index].defined(); }

  MuonOptions options_;
  std::vector<Tensor> momentum_;  // undefined for parameters of AdamW
};

/// Returns x (m, n), floating, with its singular values brought near 1: `steps` rounds of y = a y + (b G + c G^2) y
/// with G = y y^T, a = 3.4445, b = -4.7750, c = 2.0315, from y = x / |x| (Jordan et al. 2024). After five rounds,
/// values above 1/500 of the norm are between 0.68 and 1.21; smaller ones stay smaller. The scale of x has no effect in
/// any dtype. A matrix of zeros gives zeros, and an element that is not finite gives NaN. Throws ShapeError unless x is
/// a matrix.
Tensor newton_schulz(const Tensor& x, int steps = 5, CallSite = {});

enum class OptimizerKind { adamw, sgd, lion, muon };
/// Parses "adamw", "sgd", "lion" or "muon". Throws ValueError.
OptimizerKind parse_optimizer(const std::string& text);
std::string to_string(OptimizerKind kind);
/// Returns a good peak rate for a small language model: Muon 2e-2, AdamW and Lion 3e-3, SGD 0.1
/// (docs/archive/measurements.md has the runs).
double usual_learning_rate(OptimizerKind kind);

}  // namespace poolgrad::nn
