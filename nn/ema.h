// The exponential moving average of a model's parameters, which often does better than the last ones (Polyak & Juditsky
// 1992; as in Tarvainen & Valpola 2017).
//
//   nn::EMA average(model);
//   for (...) {
//     loss.backward(); optimizer.step(); optimizer.zero_grad();
//     average.update();
//   }
//   const nn::Substitution averaged(model, average.tensors());  // evaluate; the model is itself again at its end
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
  /// Begins with copies of the parameters, tagged Category::optimizer_state. Throws ValueError for a decay outside
  /// [0, 1), and for a parameter called "updates", as the number of them is in state().
  explicit EMA(const Module& module, EMAOptions options = {}, CallSite = {});
  EMA(const EMA&) = delete;
  EMA& operator=(const EMA&) = delete;

  /// After a step. Throws DeviceError, DTypeError or ShapeError, changing nothing, where a parameter was moved, cast or
  /// given another shape meanwhile.
  void update(CallSite = {});
  std::int64_t updates() const { return updates_; }

  /// The averages under their parameters' names and in their dtypes, for Substitution and functional_call(), or to be
  /// loaded into a module. They share memory with this, but for half types.
  NamedTensors tensors(CallSite = {}) const;

  /// What is to be saved (save_safetensors(path, {average.state(), {}})): the averages, which share memory with this,
  /// and how many "updates" there were (i64).
  NamedTensors state() const;
  /// Copies such a state in. Throws ValueError, changing nothing, where a name, shape or dtype does not fit, and for an
  /// undefined tensor.
  void load(const NamedTensors& state);
  /// Throws what load() would, except for the number of updates: reads no element.
  void check(const NamedTensors& state) const;
  /// The number that a state has as "updates". Throws ValueError if it is not from 0 to 2^53.
  static std::int64_t updates_in(const Tensor& updates);

 private:
  NamedTensors parameters_, averages_;
  std::vector<DType> made_with_;  // the dtype of each parameter
  EMAOptions options_;
  std::int64_t updates_ = 0;
};

}  // namespace poolgrad::nn
