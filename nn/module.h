// Module: named parameters, buffers and submodules, for saving, loading and training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/memory/checkpoint.h"
#include "autograd/operators/unary.h"
#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad::nn {

/// Tensors in a fixed order with dotted names, such as "block0.mixer.output.weight", as in safetensors files.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
/// Returns the first tensor of that name, or nullptr.
const Tensor* entry_of(const NamedTensors& state, const std::string& name);
/// Returns whether `given`, which may be undefined, has the shape and dtype of `own`.
bool fits(const Tensor& given, const Tensor& own);
/// Returns the device of the first tensor; without tensors, the CPU.
Device device_of(const std::vector<Tensor>& tensors);

/// Options for making parameters. `generator` must outlive the call only; Dropout keeps it.
struct ParameterOptions {
  DType dtype = DType::f32;
  Device device = cpu;
  Generator* generator = &default_generator();

  /// Returns *generator, or default_generator() if it is null.
  Generator& numbers() const { return generator ? *generator : default_generator(); }
};

class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Own parameters in order of registration, then those of submodules; a tensor shared by two owners appears once.
  NamedTensors named_parameters() const;
  std::vector<Tensor> parameters() const;
  /// Registered tensors that are not trained (register_buffer()), in the same order.
  NamedTensors named_buffers() const;
  /// Parameters, then buffers: the tensors that are saved and loaded.
  NamedTensors named_tensors() const;
  /// Number of elements of all parameters.
  std::int64_t parameter_count() const;

  /// Copies values into parameters and buffers. A tied weight has the first of its names, as in a saved file. Throws
  /// ValueError, changing nothing, that lists missing, unexpected, duplicate and undefined tensors, other shapes or
  /// dtypes, and own tensors whose elements share places (a broadcast).
  void load(const NamedTensors& state);
  /// Throws the errors of load().
  void check(const NamedTensors& state) const;
  /// Write and read a safetensors file. Throw FileError; load_file() also throws the errors of load(). If the disk
  /// fails during the read, some parameters may have changed. save_file() throws ValueError, writing nothing, for a
  /// module without tensors: its layers were never registered.
  void save_file(const std::string& path, CallSite = {}) const;
  void load_file(const std::string& path, CallSite = {});

  /// Training mode switches dropout on. New modules are in training mode. Includes submodules.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  /// Frees every gradient.
  void zero_grad();

  /// Parameters, those of submodules included, require no gradient any more: backward passes do not compute it and
  /// optimizers skip them. Drops existing gradients. unfreeze() undoes it. freeze() throws Error, changing nothing, for
  /// a tensor that is not a leaf, such as a substitute under a Substitution.
  void freeze() { set_trainable(false); }
  void unfreeze() { set_trainable(true); }

 protected:
  Module() = default;
  /// Makes a parameter of normal numbers with mean 0, or of one value. Registers it under `name`, tagged
  /// Category::parameter.
  Tensor normal_parameter(const std::string& name, const Shape& shape, double deviation,
                          const ParameterOptions& options, CallSite = {});
  Tensor constant_parameter(const std::string& name, const Shape& shape, double value, const ParameterOptions& options,
                            CallSite = {});
  /// Registers an existing tensor: the module's own, or another module's (tied weights). It is trained only if it
  /// requires a gradient. Throws ValueError if it is undefined, not floating, or the output of an operator.
  void share_parameter(const std::string& name, const Tensor& parameter);
  /// Makes `tensor` a buffer, and returns it: running statistics, tables. Any dtype. Throws Error for a tensor with a
  /// gradient record. Write into the buffer by copy_from(): a member that is assigned another tensor is no longer the
  /// buffer.
  Tensor register_buffer(const std::string& name, const Tensor& tensor);
  /// `module` is a member of this object, or owned by one. Like the functions that register tensors, throws ValueError
  /// for a name that this object already uses, and for a name that is empty or has a dot.
  void add_module(const std::string& name, Module& module);

 private:
  void check_name(const std::string& name) const;
  void collect(NamedTensors Module::*kind, const std::string& prefix, NamedTensors& all) const;
  /// named_tensors(), with a shared tensor under each of its names.
  NamedTensors all_names() const;
  void set_trainable(bool on);

  NamedTensors parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> modules_;
  bool training_ = true;
};

/// Moves a module's parameters, buffers and gradients to a device, or casts the floating ones. Tensors keep their
/// identity and hooks, so other handles see the change, and tied weights stay tied. Changes nothing if memory does not
/// suffice (OutOfMemoryError). Call it before making an optimizer: an earlier optimizer refuses its next step, because
/// its state fits the old parameters. The backward pass of an earlier graph throws Error when it reaches a changed
/// parameter.
void to(Module& module, Device device, CallSite = {});
/// Tensors of fewer dimensions than `least_dim` keep their dtype. Throws DTypeError for a dtype that is not floating.
void to(Module& module, DType dtype, std::int64_t least_dim = 0, CallSite = {});

/// While alive, replaces the named parameters and buffers of the module by the given tensors. Gradients flow to those;
/// tensors without a gradient record are constants. For names left out, the module uses its own tensors.
///
///   {
///     const Substitution averaged(model, average.tensors());  // nn/ema.h
///     loss = trainer.validate(8);
///   }
///
/// Copies nothing. Functions that a backward pass runs again (checkpoint(), chunked_loss()) throw under a Substitution:
/// their first run unless grad mode is off, a second run always. to(), freeze() or a step under a Substitution apply to
/// the substitutes. Substitutions nest and end in reverse order. The module must outlive it, and no other thread may
/// use the module. Throws ValueError, changing nothing, that lists names without a tensor in the module, and other
/// shapes, dtypes or devices.
class Substitution {
 public:
  Substitution(const Module& module, const NamedTensors& tensors);
  ~Substitution();
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> swapped_;  // a tensor of the module, its substitute
  ForbidRecompute no_second_run_;
};

/// call() under a Substitution: a module as a function of its parameters.
///
///   const Tensor loss = functional_call(model, weights, [&] { return model.loss(tokens, targets); });
Tensor functional_call(const Module& module, const NamedTensors& tensors, const std::function<Tensor()>& call,
                       CallSite = {});

/// A module that maps a tensor to a tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& x) = 0;
  /// Call a layer by this operator: memory reports then show the line of the call, which forward() cannot know.
  Tensor operator()(const Tensor& x, CallSite = {}) { return forward(x); }
};

/// layer(x) with `tensors` in place of the layer's own.
Tensor functional_call(Layer& layer, const NamedTensors& tensors, const Tensor& x, CallSite = {});

/// The memory of one mixer, for a sequence that continues byte by byte or chunk by chunk (nn/chunked.h). With chunks,
/// `whole` is the final number of positions. The mixer then keeps only the tensors that later positions see, and never
/// writes to them again: copies of the state share them. With grad mode on, they are differentiable functions of the
/// chunk and of the earlier tensors.
struct SequenceState {
  std::int64_t length = 0;  // positions seen
  std::int64_t whole = 0;   // 0: not in chunks
  /// The longest sequence, for mixers that depend on the length; 0: unknown.
  std::int64_t context = 0;
  std::vector<Tensor> tensors;          // the mixer's own: keys and values
  std::vector<std::int64_t> positions;  // the mixer's own: positions of the tensors
};

/// A layer that moves information between positions, (B, T, width) -> (B, T, width), such as attention. The caller
/// gives blocks their mixer, so blocks do not depend on attention.
class SequenceMixer : public Module {
 public:
  /// With a state, x holds the positions that follow the `state->length` earlier ones, and the state is extended.
  virtual Tensor forward(const Tensor& x, SequenceState* state = nullptr) = 0;
  Tensor operator()(const Tensor& x, SequenceState* state = nullptr, CallSite = {}) { return forward(x, state); }
  /// Returns whether forward() takes a state; if not, x is always a whole sequence.
  virtual bool continues() const { return true; }
  /// Returns whether the output at a position depends on later ones. Language models refuse such a mixer.
  virtual bool looks_ahead() const { return false; }
  /// x (B, T, width) -> (B, heads, T, T): the weight of position j for position i of a whole sequence, in row i.
  /// Attention returns its probabilities. A mixer without such weights returns an undefined tensor.
  virtual Tensor weights(const Tensor&) { return {}; }
  /// Later inputs x are this part of longer sequences, shared with other ranks. {}: whole sequences again. Throws
  /// ValueError for a part of the positions if the mixer needs whole sequences.
  virtual void set_part(const SequencePart& part);
};

}  // namespace poolgrad::nn
