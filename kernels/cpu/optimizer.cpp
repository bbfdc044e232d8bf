#include "kernels/definition/optimizer.h"

#include <cmath>
#include <cstring>

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

/// The options with the scale that is in memory; false where that skips the step.
template <class Options>
bool take_scale(Options& options) {
  if (options.device_scale != nullptr) options.gradient_scale = *options.device_scale;
  return options.device_scale == nullptr || !std::isnan(options.gradient_scale);
}

template <template <class> class Step, class Options>
void write_step(const Options& options, void* to) {
  const RecordedStep<Step> both(options);
  static_assert(sizeof both <= recorded_bytes && std::is_trivially_copyable_v<RecordedStep<Step>>);
  std::memcpy(to, &both, sizeof both);
}

}  // namespace

void write_recorded(const AdamW& options, void* to) { write_step<AdamWStep>(options, to); }
void write_recorded(const Sgd& options, void* to) { write_step<SgdStep>(options, to); }
void write_recorded(const WeightedSum& numbers, void* to) { write_step<WeightedSumStep>(numbers, to); }

void on_cpu::adamw(Stream, const AdamW& given, std::span<const AdamWOperands> all) {
  AdamW options = given;
  if (!take_scale(options)) return;
  for (const auto& [parameter, gradient, first_moment, second_moment] : all)
    with_floating_type(parameter.dtype, [&]<class S>(S) {
      using T = Compute<S>;
      using V = Vec<T>;
      const AdamWStep<T> step(options);
      S* p = parameter.as<S>();
      const S* grad = gradient.as<const S>();
      T *first = first_moment.as<T>(), *second = second_moment.as<T>();
      for_all_vectors<T>(parameter.count(), [=](std::int64_t i, std::int64_t count) {
        V x = simd::load_partial<T>(p + i, count), m = simd::load_partial<T>(first + i, count),
          v = simd::load_partial<T>(second + i, count);
        step(x, V(simd::load_partial<T>(grad + i, count)), m, v);
        simd::store_partial(first + i, m, count);
        simd::store_partial(second + i, v, count);
        simd::store_partial(p + i, x, count);
      });
    });
}

void on_cpu::sgd(Stream, const Sgd& given, std::span<const SgdOperands> all) {
  Sgd options = given;
  if (!take_scale(options)) return;
  for (const auto& [parameter, gradient, momentum] : all)
    with_floating_type(parameter.dtype, [&]<class S>(S) {
      using T = Compute<S>;
      using V = Vec<T>;
      const SgdStep<T> step(options);
      S* p = parameter.as<S>();
      const S* grad = gradient.as<const S>();
      T* buffer = options.momentum == 0 ? nullptr : momentum.as<T>();
      for_all_vectors<T>(parameter.count(), [=](std::int64_t i, std::int64_t count) {
        V x = simd::load_partial<T>(p + i, count);
        const V g = simd::load_partial<T>(grad + i, count);
        if (buffer) {
          V old = simd::load_partial<T>(buffer + i, count);
          step(x, g, old);
          simd::store_partial(buffer + i, old, count);
        } else {
          step(x, g);
        }
        simd::store_partial(p + i, x, count);
      });
    });
}

void on_cpu::weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y) {
  const double scale = numbers.device_scale != nullptr ? *numbers.device_scale : 1.0;
  if (std::isnan(scale)) return copy(stream, out, x);
  const WeightedSumStep<double> step(numbers);
  axpby(stream, out, step.of_x(), x, step.of_y(scale), y);
}

}  // namespace poolgrad::kernels
