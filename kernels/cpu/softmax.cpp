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
  if constexpr (std::is_same_v<S, T>) {  // keep the exponentials in `out`
    const T sum = sum_row<T>(n, [&](std::int64_t i, std::int64_t count) {
      const auto value = exponential(i, count);
      simd::store_partial(out + i, value, count);
      return value;
    });
    const T scale = sum == T{} ? T{} : T(1) / sum;
    for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
      simd::store_partial(out + i, simd::load_partial<T>(out + i, count) * scale, count);
    });
  } else {  // rounds only once
    const T sum = sum_row<T>(n, exponential), scale = sum == T{} ? T{} : T(1) / sum;
    for_each_vector<T>(n, [&](std::int64_t i, std::int64_t count) {
      simd::store_partial(out + i, exponential(i, count) * scale, count);
    });
  }
}

}  // namespace

void on_cpu::softmax(Stream, const View& out, const View& x) {
  for_each_row(x, [&]<class S>(Row<S> row) { softmax_row<S>(row.of(out), row.of(x), row.n); });
}

void on_cpu::softmax_backward(Stream, const View& dx, const View& grad, const View& out) {
  for_each_row(out, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const S *g = row.of(grad), *y = row.of(out);
    S* to = row.of(dx);
    const T dot = sum_row<T>(row.n, [&](std::int64_t i, std::int64_t count) {
      return simd::load_partial<T>(g + i, count) * simd::load_partial<T>(y + i, count);
    });
    for_each_vector<T>(row.n, [&](std::int64_t i, std::int64_t count) {
      const auto value = simd::load_partial<T>(y + i, count) * (simd::load_partial<T>(g + i, count) - dot);
      simd::store_partial(to + i, value, count);
    });
  });
}

void on_cpu::log_softmax(Stream, const View& out, const View& x) {
  for_each_row(x, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const S* from = row.of(x);
    S* to = row.of(out);
    const ExpSum<T> sum = exp_sum<T>(from, row.n);
    const T log_sum = sum.sum == T{} ? T{} : std::log(sum.sum);  // a row of -infinity stays -infinity
    for_each_vector<T>(row.n, [&](std::int64_t i, std::int64_t count) {
      simd::store_partial(to + i, (simd::load_partial<T>(from + i, count) - sum.shift) - log_sum, count);
    });
  });
}

void on_cpu::log_softmax_backward(Stream, const View& dx, const View& grad, const View& out) {
  for_each_row(out, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const S *g = row.of(grad), *y = row.of(out);
    S* to = row.of(dx);
    const T total =
        sum_row<T>(row.n, [&](std::int64_t i, std::int64_t count) { return simd::load_partial<T>(g + i, count); });
    for_each_vector<T>(row.n, [&](std::int64_t i, std::int64_t count) {
      const auto probability = simd::exp(simd::load_partial<T>(y + i, count));
      simd::store_partial(to + i, simd::load_partial<T>(g + i, count) - probability * total, count);
    });
  });
}

void on_cpu::logsumexp(Stream, const View& out, const View& x) {
  for_each_row(x, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const ExpSum<T> sum = exp_sum<T>(row.of(x), row.n, /*infinite=*/true);
    const T lse = sum.shift + std::log(sum.sum);
    if (out.dtype == dtype_of<T>)
      out.as<T>()[row.number] = lse;
    else
      out.as<S>()[row.number] = static_cast<S>(lse);
  });
}

}  // namespace poolgrad::kernels
