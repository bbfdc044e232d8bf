#include <limits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows/rows.cuh"

namespace poolgrad::kernels {
namespace {

using cuda::Compute;
using cuda::RowPart;
using cuda::RowShape;

/// Maps rows of x in S to rows of the result in S; a thread holds `each` elements of a row.
template <class S>
struct RowToRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1>::capacity;
  S* out;
  const S* x;
};

template <class S>
struct SoftmaxRow : RowToRow<S> {
  using typename RowToRow<S>::T;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const RowPart<S, Threads> part(shape, this->x + row * shape.columns);
    const cuda::ExpSum<T> of = cuda::exp_sum(part);
    const T scale = of.sum == T{} ? T{} : T(1) / of.sum;
    part.write(this->out + row * shape.columns, [&](T v) { return Math<T>::exp(v - of.shift) * scale; });
  }
};

template <class S>
struct LogSoftmaxRow : RowToRow<S> {
  using typename RowToRow<S>::T;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const RowPart<S, Threads> part(shape, this->x + row * shape.columns);
    const cuda::ExpSum<T> of = cuda::exp_sum(part);
    const T log_sum = of.sum == T{} ? T{} : Math<T>::log(of.sum);  // a row of -infinity stays -infinity
    part.write(this->out + row * shape.columns, [&](T v) { return (v - of.shift) - log_sum; });
  }
};

/// Results in S, or in the compute type.
template <class S>
struct LogSumExpRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1>::capacity;
  S* out;
  T* wide;  // nullptr: the result goes to `out`
  const S* x;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const RowPart<S, Threads> part(shape, x + row * shape.columns);
    const cuda::ExpSum<T> of = cuda::exp_sum(part, /*infinite=*/true);
    const T lse = of.shift + Math<T>::log(of.sum);
    if (!part.first_thread()) return;
    if (wide)
      wide[row] = lse;
    else
      out[row] = cuda::narrowed<S>(lse);
  }
};

/// Computes the gradient from that of the result, and the result.
template <class S, bool Log>
struct SoftmaxGradientRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1, 2>::capacity;
  S* dx;
  const S *grad, *out;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const std::int64_t at = row * shape.columns;
    const RowPart<S, Threads, 2> part(shape, grad + at, out + at);
    const T sum = part.template reduce<reductions::Sum>([](T g, T y) { return Log ? g : g * y; });
    part.write(dx + at, [&](T g, T y) { return Log ? g - Math<T>::exp(y) * sum : y * (g - sum); });
  }
};

template <bool Log>
void gradient_of_softmax(const char* op, Stream stream, const View& dx, const View& grad, const View& out) {
  with_floating_type(out.dtype, [&]<class S>(S) {
    cuda::for_each_row<S>(op, stream, out, {dx.data, grad.data, out.data}, {},
                          SoftmaxGradientRow<S, Log>{dx.as<S>(), grad.as<const S>(), out.as<const S>()});
  });
}

}  // namespace

void on_cuda::softmax(Stream stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    cuda::for_each_row<S>("softmax", stream, x, {out.data, x.data}, {}, SoftmaxRow<S>{{out.as<S>(), x.as<const S>()}});
  });
}

void on_cuda::log_softmax(Stream stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    cuda::for_each_row<S>("log_softmax", stream, x, {out.data, x.data}, {},
                          LogSoftmaxRow<S>{{out.as<S>(), x.as<const S>()}});
  });
}

void on_cuda::logsumexp(Stream stream, const View& out, const View& x) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    cuda::for_each_row<S>(
        "logsumexp", stream, x, {x.data}, {out.data},
        LogSumExpRow<S>{out.as<S>(), out.dtype == dtype_of<Compute<S>> ? out.as<Compute<S>>() : nullptr,
                        x.as<const S>()});
  });
}

void on_cuda::softmax_backward(Stream stream, const View& dx, const View& grad, const View& out) {
  gradient_of_softmax<false>("softmax_backward", stream, dx, grad, out);
}

void on_cuda::log_softmax_backward(Stream stream, const View& dx, const View& grad, const View& out) {
  gradient_of_softmax<true>("log_softmax_backward", stream, dx, grad, out);
}

}  // namespace poolgrad::kernels
