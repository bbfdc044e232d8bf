#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/workspace.h"
#include "kernels/functors/norm.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::Vec;

/// Loads optional rows: all ones, or all zeros, if absent.
template <class T, class S>
Vec<T> load_or(const S* from, std::int64_t i, std::int64_t count, T otherwise) {
  return from ? simd::load_partial<T>(from + i, count) : simd::broadcast(otherwise);
}

/// Mean and factor of a row with squares out of range: scales the row by a power of two first. Rows with infinities or
/// NaN keep the unscaled results.
template <bool Centered, class T, class S>
[[gnu::noinline, gnu::cold]] void rescaled_statistics(const S* from, std::int64_t n, T epsilon, T& center, T& factor) {
  const auto magnitude = [&](std::int64_t i) { return std::abs(static_cast<T>(from[i])); };
  T largest{};
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(magnitude(i))) return;
    largest = std::max(largest, magnitude(i));
  }
  const T scale = scale_of_squares(largest, epsilon), inverse_n = T(1) / static_cast<T>(n);
  T scaled_center{};
  if (Centered)
    scaled_center = inverse_n * sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
                      return simd::load_partial<T>(from + i, count) / scale;
                    });
  const T variance = inverse_n * sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
                       Vec<T> d = simd::load_partial<T>(from + i, count) / scale - scaled_center;
                       for (std::int64_t lane = count; lane < simd::lanes<T>; ++lane) d[lane] = T{};
                       return d * d;
                     });
  if (Centered) center = scaled_center * scale;
  factor = T(1) / std::sqrt(variance + epsilon / scale / scale) / scale;
}

/// out = (x - mean) * rstd * weight + bias. Centered: LayerNorm. Otherwise: RMSNorm, without mean and bias.
template <bool Centered, class S>
void forward(const View& out, const View& mean, const View& rstd, const View& x, const View& weight, const View& bias,
             double epsilon) {
  using T = Compute<S>;
  const Rows shape(x);
  const std::int64_t n = shape.columns;
  const T inverse_n = T(1) / static_cast<T>(n);
  const S *scale = weight.as<const S>(), *shift = bias.as<const S>();
  parallel_rows(shape, [&](std::int64_t row) {
    const S* from = x.as<const S>() + row * n;
    S* to = out.as<S>() + row * n;
    T center{};
    if (Centered)
      center = inverse_n * sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
                 return simd::load_partial<T>(from + i, count);
               });
    const T variance = inverse_n * sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
                         const Vec<T> d = simd::load_partial<T>(from + i, count, center) - center;
                         return d * d;
                       });
    T factor = T(1) / std::sqrt(variance + static_cast<T>(epsilon));
    if (!squares_fit(variance + static_cast<T>(epsilon))) [[unlikely]]
      rescaled_statistics<Centered>(from, n, static_cast<T>(epsilon), center, factor);
    if (Centered) mean.as<T>()[row] = center;
    rstd.as<T>()[row] = factor;
    for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
      Vec<T> value = (simd::load_partial<T>(from + i, count) - center) * factor;
      if (scale) value *= simd::load_partial<T>(scale + i, count);
      if (shift) value += simd::load_partial<T>(shift + i, count);
      simd::store_partial(to + i, value, count);
    });
  });
}

/// With h = (x - mean) * rstd and u = grad * weight: dx = rstd * (u - mean(u) - h * mean(u * h)), dweight = sum(grad *
/// h), dbias = sum(grad). RMSNorm has neither mean(u) nor dbias. `partial` holds RowChunks x {dweight, dbias} rows.
template <bool Centered, class S>
void backward(const View& dx, const View& dweight, const View& dbias, const View& grad, const View& x, const View& mean,
              const View& rstd, const View& weight, Compute<S>* partial) {
  using T = Compute<S>;
  const Rows shape(x);
  const std::int64_t n = shape.columns;
  const RowChunks chunks(shape.rows);
  const T inverse_n = T(1) / static_cast<T>(n);
  const S* scale = weight.as<const S>();
  parallel_ranges(chunks.count, 1, [&](std::int64_t chunk, std::int64_t) {
    T *weight_sum = nullptr, *bias_sum = nullptr;
    if (partial) {
      weight_sum = partial + chunk * 2 * n;
      bias_sum = weight_sum + n;
      std::fill_n(weight_sum, 2 * n, T{});
    }
    for (std::int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
      const S *from = x.as<const S>() + row * n, *g = grad.as<const S>() + row * n;
      S* to = dx.as<S>() + row * n;
      const T center = Centered ? mean.as<const T>()[row] : T{}, factor = rstd.as<const T>()[row];
      Vec<T> sum_u{}, sum_uh{};
      for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
        const Vec<T> gi = simd::load_partial<T>(g + i, count);
        const Vec<T> h = (simd::load_partial<T>(from + i, count) - center) * factor;
        const Vec<T> u = gi * load_or<T>(scale, i, count, T(1));
        sum_u += u;
        sum_uh += u * h;
        if (partial) {
          simd::store_partial(weight_sum + i, simd::load_partial<T>(weight_sum + i, count) + gi * h, count);
          if (Centered) simd::store_partial(bias_sum + i, simd::load_partial<T>(bias_sum + i, count) + gi, count);
        }
      });
      const T mean_u = Centered ? simd::sum<T>(sum_u) * inverse_n : T{}, mean_uh = simd::sum<T>(sum_uh) * inverse_n;
      for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
        const Vec<T> h = (simd::load_partial<T>(from + i, count) - center) * factor;
        const Vec<T> u = simd::load_partial<T>(g + i, count) * load_or<T>(scale, i, count, T(1));
        simd::store_partial(to + i, (u - mean_u - h * mean_uh) * factor, count);
      });
    }
  });
  if (!partial) return;
  combine_partial_rows(partial, chunks.count, 2 * n, [](T a, T b) { return a + b; });
  if (dweight.data) narrow<T>(partial, n, dweight.dtype, dweight.data);
  if (dbias.data) narrow<T>(partial + n, n, dbias.dtype, dbias.data);
}

std::int64_t partial_sums(const View& x) {
  const Rows shape(x);
  return RowChunks(shape.rows).count * 2 * shape.columns;
}

template <bool Centered>
void backward(Stream stream, const char* name, const View& dx, const View& dweight, const View& dbias, const View& grad,
              const View& x, const View& mean, const View& rstd, const View& weight) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    if (!dweight.data && !dbias.data)
      return backward<Centered, S>(dx, dweight, dbias, grad, x, mean, rstd, weight, nullptr);
    const Workspace<Compute<S>> partial(stream, name, partial_sums(x));
    backward<Centered, S>(dx, dweight, dbias, grad, x, mean, rstd, weight, partial.data());
  });
}

}  // namespace

std::int64_t on_cpu::norm_backward_scratch(const View& x) {
  return partial_sums(x) * static_cast<std::int64_t>(size_of(compute_dtype(x.dtype)));
}

void on_cpu::layer_norm(Stream, const View& out, const View& mean, const View& rstd, const View& x, const View& weight,
                        const View& bias, double epsilon) {
  with_floating_type(x.dtype, [&]<class S>(S) { forward<true, S>(out, mean, rstd, x, weight, bias, epsilon); });
}

void on_cpu::layer_norm_backward(Stream stream, const View& dx, const View& dweight, const View& dbias,
                                 const View& grad, const View& x, const View& mean, const View& rstd,
                                 const View& weight) {
  backward<true>(stream, "layer_norm_backward", dx, dweight, dbias, grad, x, mean, rstd, weight);
}

void on_cpu::rms_norm(Stream, const View& out, const View& rstd, const View& x, const View& weight, double epsilon) {
  with_floating_type(x.dtype, [&]<class S>(S) { forward<false, S>(out, {}, rstd, x, weight, {}, epsilon); });
}

void on_cpu::rms_norm_backward(Stream stream, const View& dx, const View& dweight, const View& grad, const View& x,
                               const View& rstd, const View& weight) {
  backward<false>(stream, "rms_norm_backward", dx, dweight, {}, grad, x, {}, rstd, weight);
}

}  // namespace poolgrad::kernels
