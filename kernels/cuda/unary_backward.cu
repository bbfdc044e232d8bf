#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/functors/elementwise.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

/// The second input is x or y, whichever the functor reads.
template <class F, class T>
struct UnaryGradient {
  T a, b;
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const {
    out[0] = F::gradient(in[0], in[1], in[1], a, b);
  }
};

}  // namespace

void on_cuda::unary_backward(Stream stream, UnaryOp op, const View& dx, const View& grad, const View& x, const View& y,
                             double a, double b) {
  with_functor(op, [&]<class F>(F) {
    using Any = typename F::template on<float>;
    const View& point = Any::reads_input ? x : (Any::reads_output ? y : grad);
    with_floating_compute_type(dx.dtype, [&]<class T>(T) {
      using Own = typename F::template on<T>;
      using Flat = functors::Flat<T>;  // one kernel for all functions with derivative 0
      using Derivative = std::conditional_t<std::is_base_of_v<Flat, Own>, Flat, Own>;
      cuda::for_each_element<T>(to_string(op), stream, std::array{dx}, std::array{grad, point},
                                UnaryGradient<Derivative, T>{static_cast<T>(a), static_cast<T>(b)});
    });
  });
}

}  // namespace poolgrad::kernels
