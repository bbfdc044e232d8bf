#include <cmath>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;

template <class S>
void softmax_row(S* out, const S* x, std::int64_t n) {
  using T = Compute<S>;
  constexpr T lowest = -std::numeric_limits<T>::infinity();
  const T largest = max_row<T>(x, n), shift = largest == lowest ? T{} : largest;
  const auto exponential = [&](std::int64_t i, std::int64_t count) {
    return simd::exp(simd::load_partial<T>(x + i, count, lowest) - shift);
  };
  if constexpr (std::is_same_v<S, T>) {  // the exponentials wait in `out`
    const T sum = sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
      const auto value = exponential(i, count);
      simd::store_partial(out + i, value, count);
      return value;
    });
    const T scale = sum == T{} ? T{} : T(1) / sum;
    for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
      simd::store_partial(out + i, simd::load_partial<T>(out + i, count) * scale, count);
    });
  } else {  // rounded once only
    const T sum = sum_row<T>(n, exponential), scale = sum == T{} ? T{} : T(1) / sum;
    for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
      simd::store_partial(out + i, exponential(i, count) * scale, count);
    });
  }
}

}  // namespace

void on_cpu::softmax(Stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    const Rows shape(x);
    parallel_rows(shape, [&](std::int64_t row) {
      softmax_row(out.as<S>() + row * shape.columns, x.as<const S>() + row * shape.columns, shape.columns);
    });
  });
}

void on_cpu::softmax_backward(Stream, const View& dx, const View& grad, const View& out) {
  with_floating_type(out.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    const Rows shape(out);
    parallel_rows(shape, [&](std::int64_t row) {
      const S* g = grad.as<const S>() + row * shape.columns;
      const S* y = out.as<const S>() + row * shape.columns;
      S* to = dx.as<S>() + row * shape.columns;
      const T dot = sum_row<T>(shape.columns, [&](std::int64_t i, std::int64_t count) {
        return simd::load_partial<T>(g + i, count) * simd::load_partial<T>(y + i, count);
      });
      for_each_vector<T>(shape.columns, [&](std::int64_t i, std::int64_t count) {
        const auto value = simd::load_partial<T>(y + i, count) * (simd::load_partial<T>(g + i, count) - dot);
        simd::store_partial(to + i, value, count);
      });
    });
  });
}

void on_cpu::log_softmax(Stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    const Rows shape(x);
    parallel_rows(shape, [&](std::int64_t row) {
      const S* from = x.as<const S>() + row * shape.columns;
      S* to = out.as<S>() + row * shape.columns;
      const ExpSum<T> sum = exp_sum<T>(from, shape.columns);
      const T log_sum = sum.sum == T{} ? T{} : std::log(sum.sum);  // a row of -infinity stays so
      for_each_vector<T>(shape.columns, [&](std::int64_t i, std::int64_t count) {
        simd::store_partial(to + i, (simd::load_partial<T>(from + i, count) - sum.shift) - log_sum, count);
      });
    });
  });
}

void on_cpu::log_softmax_backward(Stream, const View& dx, const View& grad, const View& out) {
  with_floating_type(out.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    const Rows shape(out);
    parallel_rows(shape, [&](std::int64_t row) {
      const S* g = grad.as<const S>() + row * shape.columns;
      const S* y = out.as<const S>() + row * shape.columns;
      S* to = dx.as<S>() + row * shape.columns;
      const T total = sum_row<T>(
          shape.columns, [&](std::int64_t i, std::int64_t count) { return simd::load_partial<T>(g + i, count); });
      for_each_vector<T>(shape.columns, [&](std::int64_t i, std::int64_t count) {
        const auto probability = simd::exp(simd::load_partial<T>(y + i, count));
        simd::store_partial(to + i, simd::load_partial<T>(g + i, count) - probability * total, count);
      });
    });
  });
}

void on_cpu::log_sum_exp(Stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    const Rows shape(x);
    parallel_rows(shape, [&](std::int64_t row) {
      const ExpSum<T> sum = exp_sum<T>(x.as<const S>() + row * shape.columns, shape.columns);
      const T lse = sum.shift + std::log(sum.sum);
      if (out.dtype == dtype_of<T>)
        out.as<T>()[row] = lse;
      else
        out.as<S>()[row] = static_cast<S>(lse);
    });
  });
}

}  // namespace poolgrad::kernels
