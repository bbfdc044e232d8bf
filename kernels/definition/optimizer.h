// One step of an optimiser for one element, host and device alike, bit for bit: sums of products are written as fused.
// V is a number of type T or a vector of them.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/definition/host_device.h"
#include "kernels/definition/math.h"
#include "kernels/optimizer.h"

namespace poolgrad::kernels {

template <class T>
struct AdamWStep {
  T decay, rate, root, epsilon, beta1, rest1, beta2, rest2, scale;

  explicit AdamWStep(const AdamW& o)
      : decay(static_cast<T>(1 - o.learning_rate * o.weight_decay)),
        rate(static_cast<T>(o.learning_rate / (1 - std::pow(o.beta1, static_cast<double>(o.step))))),
        root(static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(o.step))))),
        epsilon(static_cast<T>(o.epsilon)),
        beta1(static_cast<T>(o.beta1)),
        rest1(static_cast<T>(1 - o.beta1)),
        beta2(static_cast<T>(o.beta2)),
        rest2(static_cast<T>(1 - o.beta2)),
        scale(static_cast<T>(o.gradient_scale)) {}

  template <class V>
  POOLGRAD_HD void operator()(V& parameter, V gradient, V& first_moment, V& second_moment) const {
    const V g = gradient * scale;
    first_moment = Math<V>::fma(V{} + beta1, first_moment, rest1 * g);
    second_moment = Math<V>::fma(V{} + beta2, second_moment, rest2 * g * g);
    const V size = Math<V>::fma(Math<V>::sqrt(second_moment), V{} + root, V{} + epsilon);
    parameter = Math<V>::fma(parameter, V{} + decay, -(rate * first_moment / size));
  }
};

template <class T>
struct SgdStep {
  T rate, decay, keep, blend, ahead, scale;
  bool nesterov, first_step;

  explicit SgdStep(const Sgd& o)
      : rate(static_cast<T>(o.learning_rate)),
        decay(static_cast<T>(o.weight_decay)),
        keep(static_cast<T>(o.first_step ? 0 : o.momentum)),
        blend(static_cast<T>(o.first_step ? 1 : 1 - o.dampening)),
        ahead(static_cast<T>(o.momentum)),
        scale(static_cast<T>(o.gradient_scale)),
        nesterov(o.nesterov),
        first_step(o.first_step) {}

  /// Without momentum.
  template <class V>
  POOLGRAD_HD void operator()(V& parameter, V gradient) const {
    const V step = Math<V>::fma(V{} + decay, parameter, gradient * scale);
    parameter = Math<V>::fma(V{} - rate, step, parameter);
  }
  /// The buffer may hold anything before the first step.
  template <class V>
  POOLGRAD_HD void operator()(V& parameter, V gradient, V& buffer) const {
    const V step = Math<V>::fma(V{} + decay, parameter, gradient * scale);
    const V old = first_step ? V{} : buffer;
    buffer = Math<V>::fma(V{} + keep, old, blend * step);
    const V way = nesterov ? Math<V>::fma(V{} + ahead, buffer, step) : buffer;
    parameter = Math<V>::fma(V{} - rate, way, parameter);
  }
};

/// The numbers of a WeightedSum.
template <class T>
struct WeightedSumStep {
  double a, b;
  bool of_gradient;

  explicit WeightedSumStep(const WeightedSum& o) : a(o.a), b(o.b), of_gradient(o.of_gradient) {}

  POOLGRAD_HD T of_x() const { return static_cast<T>(a); }
  POOLGRAD_HD T of_y(double scale) const { return static_cast<T>(of_gradient ? b * scale : b); }
};

/// The same step for parameters of either compute type: what a replay writes to device memory.
template <template <class> class Step>
struct RecordedStep {
  template <class Options>
  explicit RecordedStep(const Options& options) : of_float(options), of_double(options) {}
  Step<float> of_float;
  Step<double> of_double;
};

/// Where the step for T is in a RecordedStep; nullptr where there is none.
template <template <class> class Step, class T>
const Step<T>* recorded_step(const void* recorded) {
  if (recorded == nullptr) return nullptr;
  const auto* const both = static_cast<const RecordedStep<Step>*>(recorded);
  if constexpr (std::is_same_v<T, float>)
    return &both->of_float;
  else
    return &both->of_double;
}

}  // namespace poolgrad::kernels
