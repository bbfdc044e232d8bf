// Module: named parameters and submodules. What a model is made of, saved as and trained through.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

/// Tensors in a fixed order with dotted names: "block0.mixer.output.weight". The form in which safetensors files hold
/// them.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// How a module makes its parameters. `generator` must outlive the call only, except for Dropout, which keeps it.
struct ParameterOptions {
  DType dtype = DType::f32;
  Device device = cpu;
  Generator* generator = &default_generator();
};

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Own parameters in order of registration, then those of submodules; a tensor shared by two owners appears once.
  NamedTensors named_parameters() const;
  std::vector<Tensor> parameters() const;
  /// Number of elements of all parameters.
  std::int64_t parameter_count() const;

  /// Copies values into the parameters. Throws ValueError, changing nothing, that lists what is missing, unexpected or
  /// of another shape or dtype.
  void load(const NamedTensors& state);
  /// Throws what load() would.
  void check(const NamedTensors& state) const;
  /// To and from a safetensors file. Throw FileError; load_file() also what load() throws. A disk that fails while
  /// parameters are read may leave some of them changed.
  void save_file(const std::string& path) const;
  void load_file(const std::string& path);

  /// Training mode switches dropout on; new modules are in training mode. Includes submodules.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  /// Sets every gradient to none, which gives its memory back.
  void zero_grad();

 protected:
  Module() = default;
  /// A parameter of normal numbers with mean 0, or of one value; registered under `name`, tagged Category::parameter.
  Tensor normal_parameter(const std::string& name, const Shape& shape, double deviation,
                          const ParameterOptions& options);
  Tensor constant_parameter(const std::string& name, const Shape& shape, double value, const ParameterOptions& options);
  /// An existing tensor, shared with another module (tied weights).
  void share_parameter(const std::string& name, const Tensor& parameter);
  /// `module` is a member of this object, or owned by one. Like those that register parameters, throws ValueError for a
  /// name that a parameter or a submodule of this object has already, and for one that is empty or has a dot.
  void add_module(const std::string& name, Module& module);

 private:
  void check_name(const std::string& name) const;
  void collect(const std::string& prefix, NamedTensors& found) const;

  NamedTensors parameters_;
  std::vector<std::pair<std::string, Module*>> modules_;
  bool training_ = true;
};

/// A module from one tensor to one tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& x) = 0;
  Tensor operator()(const Tensor& x, CallSite = {}) { return forward(x); }
};

/// What one mixer remembers of the positions it has seen, so that a sequence can be continued: byte by byte, or chunk
/// by chunk (nn/chunked.h). Then `whole` is the number of positions that it will have in the end, and the mixer keeps
/// only what later ones still see, in tensors that it never writes to again: copies of the state share them. With grad
/// mode on they are differentiable functions of the chunk and of the tensors before.
struct SequenceState {
  std::int64_t length = 0;              // positions seen
  std::int64_t whole = 0;               // 0: not in chunks
  std::vector<Tensor> tensors;          // the mixer's own: keys and values
  std::vector<std::int64_t> positions;  // the mixer's own: where they lie
};

/// What moves information between positions, (B, T, width) -> (B, T, width): attention, or anything else with this
/// shape. Blocks take one from outside, so they know nothing of attention.
class SequenceMixer : public Module {
 public:
  /// With a state, x holds the positions that follow the `state->length` ones seen before; the state is extended.
  virtual Tensor forward(const Tensor& x, SequenceState* state = nullptr) = 0;
};

}  // namespace poolgrad::nn
