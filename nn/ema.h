// The exponential moving average of a model's parameters, which often has a lower loss than the last parameters (Polyak
// & Juditsky 1992; as in Tarvainen & Valpola 2017).
//
//   nn::EMA average(model);
//   for (...) {
//     loss.backward(); optimizer.step(); optimizer.zero_grad();
//     average.update();
//   }
//   const nn::Substitution averaged(model, average.tensors());  // evaluate; its end restores the model
#pragma once

#include <cstdint>

#include "nn/module.h"

namespace poolgrad::nn {

struct EMAOptions {
  double decay = 0.999;
  /// True: update n, counted from 1, decays by at most (1 + n) / (10 + n), so that short runs forget their first
  /// values. False: the first update copies the parameters, and later ones decay by `decay`, as PyTorch's AveragedModel
  /// does.
  bool ramp = false;
};

/// average = d * average + (1 - d) * parameter, in the compute dtype: f32 for half types. Buffers are not averaged.
class EMA {
 public:
  /// Copies the parameters, tagged Category::optimizer_state. Throws ValueError for a decay outside [0, 1), and for a
  /// parameter called "updates", which names a count in state().
  explicit EMA(const Module& module, EMAOptions options = {}, CallSite = {});
  EMA(const EMA&) = delete;
  EMA& operator=(const EMA&) = delete;

  /// Call it after a step. Throws DeviceError, DTypeError or ShapeError, changing nothing, if a parameter was moved,
  /// cast or reshaped since construction.
  void update(CallSite = {});
  std::int64_t updates() const { return updates_; }

  /// Returns the averages under the names of their parameters and in their dtypes, for Substitution, functional_call()
  /// or Module::load(). The tensors share memory with this object, except those of half types.
  NamedTensors tensors(CallSite = {}) const;

  /// Returns the state to save, by save_safetensors(path, {average.state(), {}}): the averages, which share memory with
  /// this object, and the number of "updates" (i64).
  NamedTensors state() const;
  /// Copies a state() in. Throws ValueError, changing nothing, if a name, shape or dtype does not fit, and for an
  /// undefined tensor.
  void load(const NamedTensors& state);
  /// Throws the errors of load(), except for the number of updates: reads no element.
  void check(const NamedTensors& state) const;
  /// Returns the number in the entry "updates" of a state. Throws ValueError if it is not from 0 to 2^53.
  static std::int64_t updates_in(const Tensor& updates);

 private:
  NamedTensors parameters_, averages_;
  std::vector<DType> made_with_;  // the dtype of each parameter
  EMAOptions options_;
  std::int64_t updates_ = 0;
};

}  // namespace poolgrad::nn
