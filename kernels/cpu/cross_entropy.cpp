#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/row.h"

namespace poolgrad::kernels {

using simd::Compute;

void on_cpu::cross_entropy(Stream, const View& loss, const View& lse, const View& logits, const View& targets,
                           std::int64_t ignore, double smoothing) {
  for_each_row(logits, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const T smooth = static_cast<T>(smoothing);
    const S* x = row.of(logits);
    const ExpSum<T> sum = exp_sum<T>(x, row.n);
    const T log_sum = std::log(sum.sum);
    lse.as<T>()[row.number] = sum.shift + log_sum;
    const std::int64_t target = targets.as<const std::int64_t>()[row.number];
    T value{};
    if (target != ignore) {
      value = log_sum - (static_cast<T>(x[target]) - sum.shift);
      if (smooth != T{}) {
        const T total = sum_row<T>(row.n, [&](std::int64_t i, std::int64_t count) {
          return simd::load_partial<T>(x + i, count, sum.shift) - sum.shift;
        });
        value = (T(1) - smooth) * value + smooth * (log_sum - total / static_cast<T>(row.n));
      }
    }
    if (loss.dtype == dtype_of<T>)
      loss.as<T>()[row.number] = value;
    else
      loss.as<S>()[row.number] = static_cast<S>(value);
  });
}

void on_cpu::cross_entropy_backward(Stream, const View& dlogits, const View& grad, const View& logits, const View& lse,
                                    const View& targets, std::int64_t ignore, double smoothing) {
  for_each_row(logits, [&]<class S>(Row<S> row) {
    using T = Compute<S>;
    const T smooth = static_cast<T>(smoothing), uniform = smooth / static_cast<T>(row.n);
    const S* x = row.of(logits);
    S* to = row.of(dlogits);
    const std::int64_t target = targets.as<const std::int64_t>()[row.number], at = grad.offset(row.number);
    if (target == ignore) {
      std::fill_n(to, row.n, S{});
      return;
    }
    const T g = grad.dtype == dtype_of<T> ? grad.as<const T>()[at] : static_cast<T>(grad.as<const S>()[at]);
    const T log_sum = lse.as<const T>()[row.number];
    const T wanted = std::exp(static_cast<T>(x[target]) - log_sum) - uniform - (T(1) - smooth);
    for_each_vector<T>(row.n, [&](std::int64_t i, std::int64_t count) {
      const simd::Vec<T> probability = simd::exp(simd::load_partial<T>(x + i, count) - log_sum);
      simd::store_partial(to + i, (probability - uniform) * g, count);
    });
    to[target] = static_cast<S>(wanted * g);
  });
}

}  // namespace poolgrad::kernels
