#include "kernels/functors/optimizer.h"

#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

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

/// Copies the scale from memory into the options. Returns false if it skips the step.
template <class Options>
bool take_scale(Options& options) {
  if constexpr (requires { options.device_scale; }) {
    if (options.device_scale != nullptr) options.gradient_scale = *options.device_scale;
    return options.device_scale == nullptr || !std::isnan(options.gradient_scale);
  }
  return true;
}

template <class S, std::size_t States, class Step>
void update_one(const Step& step, const UpdateOperands& one) {
  using T = Compute<S>;
  using V = Vec<T>;
  S* const p = one.parameter.as<S>();
  const S* const grad = one.gradient.as<const S>();
  std::array<T*, States> state;
  for (std::size_t k = 0; k < States; ++k) state[k] = one.state[k].template as<T>();
  for_all_vectors<T>(one.parameter.count(), [=](std::int64_t i, std::int64_t count) {
    V x = simd::load_partial<T>(p + i, count), s[States == 0 ? 1 : States];
    for (std::size_t k = 0; k < States; ++k) s[k] = simd::load_partial<T>(state[k] + i, count);
    step.template take<States>(x, V(simd::load_partial<T>(grad + i, count)), s,
                               [](V value) { return simd::stored<S>(value); });
    for (std::size_t k = 0; k < States; ++k) simd::store_partial(state[k] + i, s[k], count);
    simd::store_partial(p + i, x, count);
  });
}

template <template <class> class Step, class Options>
void update_all(Options options, std::span<const UpdateOperands> all) {
  if (!take_scale(options)) return;
  with_states(options, [&]<std::size_t states>(std::integral_constant<std::size_t, states>) {
    for (const UpdateOperands& one : all)
      with_floating_type(one.parameter.dtype,
                         [&]<class S>(S) { update_one<S, states>(Step<Compute<S>>(options), one); });
  });
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
void write_recorded(const RmsProp& options, void* to) { write_step<RmsPropStep>(options, to); }
void write_recorded(const WeightedSum& numbers, void* to) { write_step<WeightedSumStep>(numbers, to); }

#define POOLGRAD_UPDATE(name, Options)                                                     \
  void on_cpu::name(Stream, const Options& options, std::span<const UpdateOperands> all) { \
    update_all<Options##Step>(options, all);                                               \
  }
POOLGRAD_UPDATES(POOLGRAD_UPDATE)
#undef POOLGRAD_UPDATE

void on_cpu::weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y) {
  const double scale = numbers.device_scale != nullptr ? *numbers.device_scale : 1.0;
  if (std::isnan(scale)) return copy(stream, out, x);
  const WeightedSumStep<double> step(numbers);
  axpby(stream, out, step.of_x(), x, step.of_y(scale), y);
}

}  // namespace poolgrad::kernels
