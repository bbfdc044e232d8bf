// One optimizer step for one element, bitwise equal on host and device: sums of products use explicit fma. V is a
// number of type T or a vector of them.
#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "kernels/functors/host_device.h"
#include "kernels/functors/math.h"
#include "kernels/optimizer.h"

namespace poolgrad::kernels {

// take<States>(parameter, gradient, state, stored) performs a step; stored(x) rounds x to the parameter's dtype.

template <class T>
struct AdamWStep {
  T decay, l2, rate, root, epsilon, beta1, rest1, beta2, rest2, scale;

  explicit AdamWStep(const AdamW& o)
      : decay(static_cast<T>(o.coupled ? 1 : 1 - o.learning_rate * o.weight_decay)),
        l2(static_cast<T>(o.coupled ? o.weight_decay : 0)),
        rate(static_cast<T>(o.learning_rate / (1 - std::pow(o.beta1, static_cast<double>(o.step))))),
        root(static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(o.step))))),
        epsilon(static_cast<T>(o.epsilon)),
        beta1(static_cast<T>(o.beta1)),
        rest1(static_cast<T>(1 - o.beta1)),
        beta2(static_cast<T>(o.beta2)),
        rest2(static_cast<T>(1 - o.beta2)),
        scale(static_cast<T>(o.gradient_scale)) {}

  template <std::size_t States, class V, class Stored>
  POOLGRAD_HD void take(V& parameter, V gradient, V* state, const Stored&) const {
    V g = gradient * scale;
    if (l2 != 0) g = Math<V>::fma(V{} + l2, parameter, g);
    state[0] = Math<V>::fma(V{} + beta1, state[0], rest1 * g);
    state[1] = Math<V>::fma(V{} + beta2, state[1], rest2 * g * g);
    V second = state[1];
    if constexpr (States == 3) second = state[2] = state[2] > second ? state[2] : second;  // a new NaN is kept
    const V size = Math<V>::fma(Math<V>::sqrt(second), V{} + root, V{} + epsilon);
    parameter = Math<V>::fma(parameter, V{} + decay, -(rate * state[0] / size));
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

  /// Before the first step the buffer is uninitialized.
  template <std::size_t States, class V, class Stored>
  POOLGRAD_HD void take(V& parameter, V gradient, V* buffer, const Stored&) const {
    const V step = Math<V>::fma(V{} + decay, parameter, gradient * scale);
    V way = step;
    if constexpr (States == 1) {
      const V old = first_step ? V{} : buffer[0];
      buffer[0] = Math<V>::fma(V{} + keep, old, blend * step);
      way = nesterov ? Math<V>::fma(V{} + ahead, buffer[0], step) : buffer[0];
    }
    parameter = Math<V>::fma(V{} - rate, way, parameter);
  }
};

template <class T>
struct RmsPropStep {
  T rate, alpha, rest, epsilon, l2, momentum, scale;
  bool centered;

  explicit RmsPropStep(const RmsProp& o)
      : rate(static_cast<T>(o.learning_rate)),
        alpha(static_cast<T>(o.alpha)),
        rest(static_cast<T>(1 - o.alpha)),
        epsilon(static_cast<T>(o.epsilon)),
        l2(static_cast<T>(o.weight_decay)),
        momentum(static_cast<T>(o.momentum)),
        scale(static_cast<T>(o.gradient_scale)),
        centered(o.centered) {}

  template <std::size_t States, class V, class Stored>
  POOLGRAD_HD void take(V& parameter, V gradient, V* state, const Stored&) const {
    V g = gradient * scale;
    if (l2 != 0) g = Math<V>::fma(V{} + l2, parameter, g);
    state[0] = Math<V>::fma(V{} + alpha, state[0], rest * g * g);
    V square = state[0];
    bool has_momentum = States == 3;
    if constexpr (States > 1) {
      if (centered) {
        state[1] = Math<V>::fma(V{} + alpha, state[1], rest * g);
        square = Math<V>::fma(-state[1], state[1], square);
        square = square < T{} ? V{} : square;  // negative only by rounding; a NaN is kept
      } else {
        has_momentum = true;
      }
    }
    V way = g / (Math<V>::sqrt(square) + epsilon);
    if constexpr (States > 1)
      if (has_momentum) way = state[States - 1] = Math<V>::fma(V{} + momentum, state[States - 1], way);
    parameter = Math<V>::fma(V{} - rate, way, parameter);
  }
};

template <class T>
struct AddGradientStep {
  bool first;

  explicit AddGradientStep(const AddGradient& o) : first(o.first) {}

  template <std::size_t States, class V, class Stored>
  POOLGRAD_HD void take(V& sum, V gradient, V* exact, const Stored& stored) const {
    V before = sum;
    if (!first) before = stored(exact[0]) == sum ? exact[0] : sum;
    sum = exact[0] = before + gradient;
  }
};

/// Calls f with states() of the options as a constant.
template <class Options, std::size_t States = Options::fewest_states, class F>
void with_states(const Options& options, const F& f) {
  if constexpr (States < Options::most_states)
    if (options.states() != States) return with_states<Options, States + 1>(options, f);
  f(std::integral_constant<std::size_t, States>{});
}

/// Coefficients of a WeightedSum.
template <class T>
struct WeightedSumStep {
  double a, b;
  bool of_gradient;

  explicit WeightedSumStep(const WeightedSum& o) : a(o.a), b(o.b), of_gradient(o.of_gradient) {}

  POOLGRAD_HD T of_x() const { return static_cast<T>(a); }
  POOLGRAD_HD T of_y(double scale) const { return static_cast<T>(of_gradient ? b * scale : b); }
};

/// The step for both compute types of parameters, as a replay writes it to device memory.
template <template <class> class Step>
struct RecordedStep {
  template <class Options>
  explicit RecordedStep(const Options& options) : of_float(options), of_double(options) {}
  Step<float> of_float;
  Step<double> of_double;
};

/// Returns the step for T in a RecordedStep; nullptr if there is none.
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
