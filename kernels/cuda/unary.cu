#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/functors/elementwise.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

template <class F, class T>
struct UnaryValue {
  T a, b;
  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const { out[0] = F::value(in[0], a, b); }
};

}  // namespace

void on_cuda::unary(Stream stream, UnaryOp op, const View& out, const View& x, double a, double b) {
  with_compute_type(x.dtype, [&]<class T>(T) {
    with_functor(op, [&]<class F>(F) {
      using Own = typename F::template on<T>;
      if constexpr (std::is_floating_point_v<T> || F::template on<float>::on_integers)
        cuda::for_each_element<T>(to_string(op), stream, std::array{out}, std::array{x},
                                  UnaryValue<Own, T>{static_cast<T>(a), static_cast<T>(b)});
    });
  });
}

}  // namespace poolgrad::kernels
