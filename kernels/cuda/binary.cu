#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/functors/elementwise.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class F, class T>
struct BinaryValue {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = F::value(in[0], in[1]); }
};

template <class T>
struct Blend {  // a x + b y
  T a, b;
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = a * in[0] + b * in[1]; }
};

template <class T>
struct Choose {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = in[0] != T{} ? in[1] : in[2]; }
};

template <class T>
struct Gated {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const {
    out[0] = functors::Silu<T>::value(in[0], in[0], in[0]) * in[1];
  }
};

/// Computes the gradients of gate and up from the gradient of the result, gate and up.
template <class T>
struct GatedGradient {
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const {
    const T grad = in[0], gate = in[1], up = in[2];
    const T s = Math<T>::sigmoid(gate);
    out[0] = grad * up * s * (T(1) + gate * (T(1) - s));
    out[1] = grad * gate * s;
  }
};

}  // namespace

void on_cuda::binary(Stream stream, BinaryOp op, const View& out, const View& a, const View& b) {
  with_compute_type(a.dtype, [&]<class T>(T) {
    with_functor(op, [&]<class F>(F) {
      if constexpr (std::is_floating_point_v<T> || takes_integers<F>())
        cuda::for_each_element<T>(to_string(op), stream, std::array{out}, std::array{a, b},
                                  BinaryValue<typename F::template on<T>, T>{});
    });
  });
}

void on_cuda::axpby(Stream stream, const View& out, double a, const View& x, double b, const View& y) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("axpby", stream, std::array{out}, std::array{x, y},
                              Blend<T>{static_cast<T>(a), static_cast<T>(b)});
  });
}

void on_cuda::where(Stream stream, const View& out, const View& cond, const View& a, const View& b) {
  with_compute_type(a.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("where", stream, std::array{out}, std::array{cond, a, b}, Choose<T>{});
  });
}

void on_cuda::silu_mul(Stream stream, const View& out, const View& gate, const View& up) {
  with_floating_compute_type(gate.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("silu_mul", stream, std::array{out}, std::array{gate, up}, Gated<T>{});
  });
}

void on_cuda::silu_mul_backward(Stream stream, const View& dgate, const View& dup, const View& grad, const View& gate,
                                const View& up) {
  with_floating_compute_type(gate.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>("silu_mul_backward", stream, std::array{dgate, dup}, std::array{grad, gate, up},
                              GatedGradient<T>{});
  });
}

}  // namespace poolgrad::kernels
