#include "kernels/definition/optimizer.h"

#include <algorithm>

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tensors.cuh"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

constexpr std::int64_t piece = 16384;

template <class T, std::size_t Operands, class Step>
POOLGRAD_HD void take_step(const Step& step, T* x) {
  if constexpr (Operands == 2)
    step(x[0], x[1]);
  else if constexpr (Operands == 3)
    step(x[0], x[1], x[2]);
  else
    step(x[0], x[1], x[2], x[3]);
}

/// `N` elements, the p-th N of the tensor: all operands but the gradient are written back.
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
  for (std::size_t e = 0; e < N; ++e) take_step<T, Operands>(step, x[e]);
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
    if (*scale != *scale) return;  // NaN
    step.scale = static_cast<T>(*scale);
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

/// Collects tensors that are computed in T, and queues their update whenever the table is full.
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

/// Calls add(updates, operands) for those of the operands that are computed in float, then for those in double.
template <std::size_t Operands, template <class> class Step, class Options, class Each, class Add>
void update_all(const char* op, Stream stream, const Options& options, std::span<const Each> all, const Add& add) {
  const auto run = [&]<class T>(T) {
    Updates<T, Operands, Step<T>> updates(op, stream, Step<T>(options), recorded_step<Step, T>(options.recorded),
                                          options.device_scale);
    for (const Each& each : all)
      if (compute_dtype(each.parameter.dtype) == dtype_of<T>) add(updates, each);
    updates.launch();
  };
  run(float{});
  run(double{});
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

void on_cuda::adamw(Stream stream, const AdamW& options, std::span<const AdamWOperands> all) {
  update_all<4, AdamWStep>("adamw", stream, options, all, [](auto& updates, const AdamWOperands& each) {
    updates.add({&each.parameter, &each.gradient, &each.first_moment, &each.second_moment});
  });
}

void on_cuda::sgd(Stream stream, const Sgd& options, std::span<const SgdOperands> all) {
  if (options.momentum == 0)
    update_all<2, SgdStep>("sgd", stream, options, all, [](auto& updates, const SgdOperands& each) {
      updates.add({&each.parameter, &each.gradient});
    });
  else
    update_all<3, SgdStep>("sgd", stream, options, all, [](auto& updates, const SgdOperands& each) {
      updates.add({&each.parameter, &each.gradient, &each.momentum});
    });
}

}  // namespace poolgrad::kernels
