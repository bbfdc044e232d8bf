#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/simd/vector_math.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::Vec;

constexpr std::int64_t range_size = 16384;

/// Calls body(i, count) for the vectors of all `n` elements, on several threads.
template <class T, class Body>
void for_all_vectors(std::int64_t n, const Body& body) {
  parallel_ranges(n, range_size, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector<T>(end - begin, [&](std::int64_t i, std::int64_t count) { body(begin + i, count); });
  });
}

}  // namespace

void on_cpu::adamw(Stream, const AdamW& options, const View& parameter, const View& gradient, const View& first_moment,
                   const View& second_moment) {
  with_floating_type(parameter.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    using V = Vec<T>;
    const auto step = static_cast<double>(options.step);
    const double correction1 = 1 - std::pow(options.beta1, step), correction2 = 1 - std::pow(options.beta2, step);
    const T decay = static_cast<T>(1 - options.learning_rate * options.weight_decay);
    const T rate = static_cast<T>(options.learning_rate / correction1);
    const T root = static_cast<T>(1 / std::sqrt(correction2)), epsilon = static_cast<T>(options.epsilon);
    const T beta1 = static_cast<T>(options.beta1), rest1 = static_cast<T>(1 - options.beta1);
    const T beta2 = static_cast<T>(options.beta2), rest2 = static_cast<T>(1 - options.beta2);
    const T scale = static_cast<T>(options.gradient_scale);
    S* p = parameter.as<S>();
    const S* grad = gradient.as<const S>();
    T *first = first_moment.as<T>(), *second = second_moment.as<T>();
    for_all_vectors<T>(parameter.count(), [=](std::int64_t i, std::int64_t count) {
      const V g = simd::load_partial<T>(grad + i, count) * scale;
      const V m = beta1 * simd::load_partial<T>(first + i, count) + rest1 * g;
      const V v = beta2 * simd::load_partial<T>(second + i, count) + rest2 * g * g;
      const V x = simd::load_partial<T>(p + i, count) * decay;
      simd::store_partial(first + i, m, count);
      simd::store_partial(second + i, v, count);
      simd::store_partial(p + i, x - rate * m / (Math<V>::sqrt(v) * root + epsilon), count);
    });
  });
}

void on_cpu::sgd(Stream, const Sgd& options, const View& parameter, const View& gradient, const View& momentum) {
  with_floating_type(parameter.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    using V = Vec<T>;
    const T rate = static_cast<T>(options.learning_rate), decay = static_cast<T>(options.weight_decay);
    const T keep = static_cast<T>(options.first_step ? 0 : options.momentum);
    const T blend = static_cast<T>(options.first_step ? 1 : 1 - options.dampening);
    const T ahead = static_cast<T>(options.momentum), scale = static_cast<T>(options.gradient_scale);
    const bool nesterov = options.nesterov, first_step = options.first_step;
    S* p = parameter.as<S>();
    const S* grad = gradient.as<const S>();
    T* buffer = options.momentum == 0 ? nullptr : momentum.as<T>();
    for_all_vectors<T>(parameter.count(), [=](std::int64_t i, std::int64_t count) {
      const V x = simd::load_partial<T>(p + i, count);
      V step = simd::load_partial<T>(grad + i, count) * scale + decay * x;
      if (buffer) {
        // The buffer may hold anything before the first step.
        const V old = first_step ? V{} : simd::load_partial<T>(buffer + i, count);
        const V next = keep * old + blend * step;
        simd::store_partial(buffer + i, next, count);
        step = nesterov ? step + ahead * next : next;
      }
      simd::store_partial(p + i, x - rate * step, count);
    });
  });
}

}  // namespace poolgrad::kernels
