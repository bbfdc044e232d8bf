#include "kernels/functors/optimizer.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tensors.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

constexpr std::int64_t piece = 16384;

/// Updates pack p of `N` elements; writes back all operands except the gradient.
template <class S, class T, std::size_t N, std::size_t Operands, class Step>
POOLGRAD_HD void update_pack(const typename cuda::TensorTable<Operands>::Entry& tensor, std::int64_t p,
                             const Step& step) {
  T x[N][Operands];
  POOLGRAD_UNROLL
  for (std::size_t k = 0; k < Operands; ++k) {
    const auto load = [&]<class From>(From) {
      const auto loaded =
          cuda::load_whole<cuda::Pack<From, N>>(reinterpret_cast<const cuda::Pack<From, N>*>(tensor.data[k]) + p);
      POOLGRAD_UNROLL
      for (std::size_t e = 0; e < N; ++e) x[e][k] = cuda::widened<T>(loaded.value[e]);
    };
    if (k < 2)
      load(S{});
    else
      load(T{});
  }
  POOLGRAD_UNROLL
  for (std::size_t e = 0; e < N; ++e)
    step.template take<Operands - 2>(x[e][0], x[e][1], x[e] + 2,
                                     [](T value) { return cuda::widened<T>(cuda::narrowed<S>(value)); });
  POOLGRAD_UNROLL
  for (std::size_t k = 0; k < Operands; ++k) {
    const auto store = [&]<class To>(To) {
      cuda::Pack<To, N> stored;
      POOLGRAD_UNROLL
      for (std::size_t e = 0; e < N; ++e) stored.value[e] = cuda::narrowed<To>(x[e][k]);
      cuda::store_whole(reinterpret_cast<cuda::Pack<To, N>*>(tensor.data[k]) + p, stored);
    };
    if (k == 0)
      store(S{});
    else if (k > 1)
      store(T{});
  }
}

template <class T, std::size_t Operands, class Step>
__global__ void update_tensors(const __grid_constant__ cuda::TensorTable<Operands> table,
                               const __grid_constant__ Step given, const Step* recorded, const double* scale) {
  Step step = recorded != nullptr ? *recorded : given;
  if (scale != nullptr) {
    if (*scale != *scale) return;  // NaN: skips the step
    if constexpr (requires { step.scale; }) step.scale = static_cast<T>(*scale);
  }
  const auto& tensor = table.of_block(blockIdx.x);
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - tensor.first_block) * piece;
  const std::int64_t end = begin + piece < tensor.count ? begin + piece : tensor.count;
  cuda::with_stored<T>(tensor.dtype, [&]<class S>(S) {
    constexpr int n = cuda::pack<T>;
    const std::int64_t packs_end = tensor.packed ? end / n : begin / n;
    for (std::int64_t p = begin / n + threadIdx.x; p < packs_end; p += blockDim.x)
      update_pack<S, T, n, Operands>(tensor, p, step);
    for (std::int64_t i = packs_end * n + threadIdx.x; i < end; i += blockDim.x)
      update_pack<S, T, 1, Operands>(tensor, i, step);
  });
}

/// Collects tensors with compute type T and queues their update when the table is full.
template <class T, std::size_t Operands, class Step>
class Updates {
 public:
  Updates(const char* op, Stream stream, const Step& step, const Step* recorded, const double* scale)
      : op_(op), stream_(stream), step_(step), recorded_(recorded), scale_(scale) {
    if (recorded != nullptr) cuda::check_operand(op, stream, recorded);
    if (scale != nullptr) cuda::check_operand(op, stream, scale);
  }
  void add(const View* const (&operands)[Operands]) {
    table_.add(op_, stream_, operands, piece, cuda::pack<T>);
    if (table_.is_full()) launch();
  }
  void launch() {
    if (table_.size == 0) return;
    cuda::launch(op_, &update_tensors<T, Operands, Step>, {{table_.blocks}, {256}}, stream_, table_, step_, recorded_,
                 scale_);
    table_ = {};
  }

 private:
  const char* op_;
  Stream stream_;
  Step step_;
  const Step* recorded_;
  const double* scale_;
  cuda::TensorTable<Operands> table_;
};

/// Updates operands with compute type float, then those with double.
template <template <class> class Step, class Options>
void update_all(const char* op, Stream stream, const Options& options, std::span<const UpdateOperands> all) {
  const void* recorded = nullptr;
  const double* scale = nullptr;
  if constexpr (requires { options.recorded; }) recorded = options.recorded, scale = options.device_scale;
  const auto run = [&]<class T, std::size_t... state>(T, std::index_sequence<state...>) {
    Updates<T, 2 + sizeof...(state), Step<T>> updates(op, stream, Step<T>(options), recorded_step<Step, T>(recorded),
                                                      scale);
    for (const UpdateOperands& each : all)
      if (compute_dtype(each.parameter.dtype) == dtype_of<T>)
        updates.add({&each.parameter, &each.gradient, &each.state[state]...});
    updates.launch();
  };
  with_states(options, [&]<std::size_t states>(std::integral_constant<std::size_t, states>) {
    run(float{}, std::make_index_sequence<states>{});
    run(double{}, std::make_index_sequence<states>{});
  });
}

template <class T>
struct WeightedElements {
  WeightedSumStep<T> given;
  const WeightedSumStep<T>* recorded;
  const double* scale;

  POOLGRAD_HD void operator()(std::int64_t, const T* in, T* out) const {
    const WeightedSumStep<T>& step = recorded != nullptr ? *recorded : given;
    const double now = scale != nullptr ? *scale : 1.0;
    const T a = step.of_x(), b = step.of_y(now);
    out[0] = now != now ? in[0] : a * in[0] + b * in[1];
  }
};

}  // namespace

void on_cuda::weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y) {
  for (const void* const there : {numbers.recorded, static_cast<const void*>(numbers.device_scale)})
    if (there != nullptr) cuda::check_operand("weighted_sum", stream, there);
  with_floating_compute_type(x.dtype, [&]<class T>(T) {
    cuda::for_each_element<T>(
        "weighted_sum", stream, std::array{out}, std::array{x, y},
        WeightedElements<T>{WeightedSumStep<T>(numbers), recorded_step<WeightedSumStep, T>(numbers.recorded),
                            numbers.device_scale});
  });
}

#define POOLGRAD_UPDATE(name, Options)                                                             \
  void on_cuda::name(Stream stream, const Options& options, std::span<const UpdateOperands> all) { \
    update_all<Options##Step>(#name, stream, options, all);                                        \
  }
POOLGRAD_UPDATES(POOLGRAD_UPDATE)
#undef POOLGRAD_UPDATE

}  // namespace poolgrad::kernels
