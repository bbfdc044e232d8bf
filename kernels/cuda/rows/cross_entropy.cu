#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/functors/indexing.h"

namespace poolgrad::kernels {
namespace {

using cuda::Compute;
using cuda::RowPart;
using cuda::RowShape;

template <class S>
struct CrossEntropyRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1>::capacity;
  void* loss;
  bool wide;  // losses are in T, else in S
  T* lse;
  const S* logits;
  const std::int64_t* targets;
  std::int64_t ignore;
  T smoothing;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const S* x = logits + row * shape.columns;
    // Loads the target's logit before the row; after the reductions it would cost two more waits for memory.
    const std::int64_t target = targets[row];
    const bool counts = target != ignore && is_within(target, shape.columns);  // otherwise check_indices() reports it
    const T wanted = counts ? cuda::widened<T>(x[target]) : T{};
    const RowPart<S, Threads> part(shape, x);
    const cuda::ExpSum<T> of = cuda::exp_sum(part);
    const T log_sum = Math<T>::log(of.sum);
    T value{};
    if (counts) {
      value = log_sum - (wanted - of.shift);
      if (smoothing != T{}) {
        const T total = part.template reduce<reductions::Sum>([&](T logit) { return logit - of.shift; });
        value = (T(1) - smoothing) * value + smoothing * (log_sum - total / static_cast<T>(shape.columns));
      }
    }
    if (!part.first_thread()) return;
    lse[row] = of.shift + log_sum;
    if (wide)
      static_cast<T*>(loss)[row] = value;
    else
      static_cast<S*>(loss)[row] = cuda::narrowed<S>(value);
  }
};

template <class S>
struct CrossEntropyGradientRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1>::capacity;
  S* dlogits;
  View grad;
  const S* logits;
  const T* lse;
  const std::int64_t* targets;
  std::int64_t ignore;
  T smoothing;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const std::int64_t target = targets[row], at = grad.offset(row);
    const bool counts = target != ignore;
    const T g = grad.dtype == dtype_of<T> ? grad.as<const T>()[at] : cuda::widened<T>(grad.as<const S>()[at]);
    const T log_sum = lse[row], uniform = smoothing / static_cast<T>(shape.columns);
    S* to = dlogits + row * shape.columns;  // may alias the logits: each thread writes only elements that it reads
    RowPart<S, Threads>(shape, logits + row * shape.columns)
        .for_each_pack([&](std::int64_t column, int, const auto& in) {
          T out[cuda::width<S>];
          const std::int64_t place = target - column;
          POOLGRAD_UNROLL
          for (int e = 0; e < cuda::width<S>; ++e) {
            const T wanted = e == place ? T(1) - smoothing : T{};
            out[e] = counts ? (Math<T>::exp(in[0][e] - log_sum) - uniform - wanted) * g : T{};
          }
          cuda::store_pack(to, column, shape, out);
        });
  }
};

}  // namespace

void on_cuda::cross_entropy(Stream stream, const View& loss, const View& lse, const View& logits, const View& targets,
                            std::int64_t ignore, double smoothing) {
  with_floating_type(logits.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    cuda::for_each_row<S>("cross_entropy", stream, logits, {logits.data}, {loss.data, lse.data, targets.data},
                          CrossEntropyRow<S>{loss.data, loss.dtype == dtype_of<T>, lse.as<T>(), logits.as<const S>(),
                                             targets.as<const std::int64_t>(), ignore, static_cast<T>(smoothing)});
  });
}

void on_cuda::cross_entropy_backward(Stream stream, const View& dlogits, const View& grad, const View& logits,
                                     const View& lse, const View& targets, std::int64_t ignore, double smoothing) {
  with_floating_type(logits.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    cuda::for_each_row<S>(
        "cross_entropy_backward", stream, logits, {dlogits.data, logits.data}, {grad.data, lse.data, targets.data},
        CrossEntropyGradientRow<S>{dlogits.as<S>(), grad, logits.as<const S>(), lse.as<const T>(),
                                   targets.as<const std::int64_t>(), ignore, static_cast<T>(smoothing)});
  });
}

}  // namespace poolgrad::kernels
