// Module: named parameters, buffers and submodules. What a model is made of, saved as and trained through.
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

/// Tensors in a fixed order with dotted names: "block0.mixer.output.weight". The form in which safetensors files hold
/// them.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
/// The first tensor of that name; nullptr where there is none.
const Tensor* entry_of(const NamedTensors& state, const std::string& name);
/// Whether `given`, which may be undefined, has the shape and dtype of `own`.
bool fits(const Tensor& given, const Tensor& own);
/// Of the first; the CPU where there is none.
Device device_of(const std::vector<Tensor>& tensors);

/// How a module makes its parameters. `generator` must outlive the call only, except for Dropout, which keeps it.
struct ParameterOptions {
  DType dtype = DType::f32;
  Device device = cpu;
  Generator* generator = &default_generator();

  /// Where random numbers come from: default_generator() where `generator` is null.
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
  /// What belongs to the module but is not trained (register_buffer()), in the same order.
  NamedTensors named_buffers() const;
  /// Parameters, then buffers: what is saved and loaded.
  NamedTensors named_tensors() const;
  /// Number of elements of all parameters.
  std::int64_t parameter_count() const;

  /// Copies values into parameters and buffers; a tied weight's come under the first of its names, as they are saved.
  /// Throws ValueError, changing nothing, that lists what is missing, unexpected, there twice, undefined or of another
  /// shape or dtype, and own tensors whose elements share places (a broadcast).
  void load(const NamedTensors& state);
  /// Throws what load() would.
  void check(const NamedTensors& state) const;
  /// To and from a safetensors file. Throw FileError; load_file() also what load() throws. A disk that fails while
  /// parameters are read may leave some of them changed. save_file() throws ValueError, writing nothing, for a module
  /// without tensors: its layers were never registered.
  void save_file(const std::string& path, CallSite = {}) const;
  void load_file(const std::string& path, CallSite = {});

  /// Training mode switches dropout on; new modules are in training mode. Includes submodules.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  /// Sets every gradient to none, which gives its memory back.
  void zero_grad();

  /// Parameters, those of submodules included, that require no gradient: backward passes do not compute theirs,
  /// optimisers pass them over. What they have is dropped. unfreeze() lets all of them learn again. freeze()
  /// throws Error, changing nothing, where one is no leaf: what stands in for it under a Substitution.
  void freeze() { set_trainable(false); }
  void unfreeze() { set_trainable(true); }

 protected:
  Module() = default;
  /// A parameter of normal numbers with mean 0, or of one value; registered under `name`, tagged Category::parameter.
  Tensor normal_parameter(const std::string& name, const Shape& shape, double deviation,
                          const ParameterOptions& options, CallSite = {});
  Tensor constant_parameter(const std::string& name, const Shape& shape, double value, const ParameterOptions& options,
                            CallSite = {});
  /// An existing tensor: one of your own, or another module's (tied weights). Only one that requires a gradient is
  /// trained. Throws ValueError for one that is undefined, not floating, or the output of an operator.
  void share_parameter(const std::string& name, const Tensor& parameter);
  /// Makes `tensor` a buffer, and returns it: running statistics, tables. Of any dtype, without a gradient (Error).
  /// Write into it (copy_from); a member that is assigned another tensor is no longer the buffer.
  Tensor register_buffer(const std::string& name, const Tensor& tensor);
  /// `module` is a member of this object, or owned by one. Like those that register tensors, throws ValueError for a
  /// name that a tensor or a submodule of this object has already, and for one that is empty or has a dot.
  void add_module(const std::string& name, Module& module);

 private:
  void check_name(const std::string& name) const;
  void collect(NamedTensors Module::*kind, const std::string& prefix, NamedTensors& all) const;
  /// named_tensors(), a shared one under all of its names.
  NamedTensors all_names() const;
  void set_trainable(bool on);

  NamedTensors parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> modules_;
  bool training_ = true;
};

/// Moves a module's parameters, buffers and gradients to a device, or casts the floating ones of them. The tensors stay
/// the same ones, with their hooks, wherever somebody holds them, and tied weights stay tied; only what they consist of
/// is new. Changes nothing where memory does not suffice (OutOfMemoryError). An optimiser that was made before refuses
/// its next step, as its state is what the parameters were: move a module before it has one. So does a backward pass
/// over a graph that was made before, when it comes to a parameter that is another one now.
void to(Module& module, Device device, CallSite = {});
/// Throws DTypeError for a dtype that is not floating.
void to(Module& module, DType dtype, CallSite = {});

/// While alive, the module's parameters and buffers of these names are the given tensors: gradients flow to those, and
/// those without a gradient record are constants. Names may be left out; the module then uses its own.
///
///   {
///     const Substitution averaged(model, average.tensors());  // nn/ema.h
///     loss = trainer.validate(8);
///   }
///
/// Nothing is copied. Functions that a backward pass would run again (checkpoint(), chunked_loss()) refuse to be run
/// meanwhile, unless grad mode is off, and to be run again. What is done to the module meanwhile, to() or freeze() or
/// a step, is done to the tensors that stand in. Substitutions nest and end in reverse order. The module must outlive
/// it, and no other thread may use it. Throws ValueError, changing nothing, that lists what the module has no such
/// tensor for, or one of another shape, dtype or device.
class Substitution {
 public:
  Substitution(const Module& module, const NamedTensors& tensors);
  ~Substitution();
  Substitution(const Substitution&) = delete;
  Substitution& operator=(const Substitution&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> swapped_;  // of the module, what stands in for it
  NoSecondRunGuard no_second_run_;
};

/// call() under a Substitution: a module as a function of its parameters.
///
///   const Tensor loss = functional_call(model, weights, [&] { return model.loss(tokens, targets); });
Tensor functional_call(const Module& module, const NamedTensors& tensors, const std::function<Tensor()>& call,
                       CallSite = {});

/// A module from one tensor to one tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& x) = 0;
  /// How a layer is called: its memory is put down to the line of the call, which forward() cannot know.
  Tensor operator()(const Tensor& x, CallSite = {}) { return forward(x); }
};

/// layer(x) with `tensors` in place of the layer's own.
Tensor functional_call(Layer& layer, const NamedTensors& tensors, const Tensor& x, CallSite = {});

/// What one mixer remembers of the positions it has seen, so that a sequence can be continued: byte by byte, or chunk
/// by chunk (nn/chunked.h). Then `whole` is the number of positions that it will have in the end, and the mixer keeps
/// only what later ones still see, in tensors that it never writes to again: copies of the state share them. With grad
/// mode on they are differentiable functions of the chunk and of the tensors before.
struct SequenceState {
  std::int64_t length = 0;  // positions seen
  std::int64_t whole = 0;   // 0: not in chunks
  /// Longest sequence, whose length mixers go by that treat every length differently; 0: not known.
  std::int64_t context = 0;
  std::vector<Tensor> tensors;          // the mixer's own: keys and values
  std::vector<std::int64_t> positions;  // the mixer's own: where they lie
};

/// What moves information between positions, (B, T, width) -> (B, T, width): attention, or anything else with this
/// shape. Blocks take one from outside, so they know nothing of attention.
class SequenceMixer : public Module {
 public:
  /// With a state, x holds the positions that follow the `state->length` ones seen before; the state is extended.
  virtual Tensor forward(const Tensor& x, SequenceState* state = nullptr) = 0;
  Tensor operator()(const Tensor& x, SequenceState* state = nullptr, CallSite = {}) { return forward(x, state); }
  /// Whether forward() takes a state; where not, x is always a whole sequence.
  virtual bool continues() const { return true; }
  /// Whether what comes out at a position depends on later ones: language models refuse such a mixer.
  virtual bool looks_ahead() const { return false; }
  /// x (B, T, width) -> (B, heads, T, T): how much position i of a whole sequence takes of position j, in row i. Of
  /// attention: its probabilities. A mixer that has no such weights returns an undefined tensor.
  virtual Tensor weights(const Tensor&) { return {}; }
  /// From now on x is this part of longer sequences, of which others have the rest; {}: whole sequences again. Throws
  /// ValueError for positions where the mixer knows no others.
  virtual void set_part(const SequencePart& part);
};

}  // namespace poolgrad::nn
