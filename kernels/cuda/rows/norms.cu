#include "kernels/cpu/workspace.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce/reduce.cuh"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/functors/norm.h"

namespace poolgrad::kernels {
namespace cuda {
namespace {

/// Loads a pack of a row of parameters; all `otherwise` without parameters.
template <class S>
__device__ void load_parameters(const S* from, std::int64_t column, const RowShape& shape, Compute<S> otherwise,
                                Compute<S> (&values)[width<S>]) {
  if (from) return load_pack(from, column, shape, otherwise, values);
  POOLGRAD_UNROLL
  for (auto& value : values) value = otherwise;
}

/// out = (x - mean) * rstd * weight + bias. Centered is LayerNorm; RMSNorm has neither mean nor bias.
template <class S, bool Centered>
struct NormRow {
  using T = Compute<S>;
  static constexpr std::int64_t each = RowPart<S, 1>::capacity;
  S* out;
  T *mean, *rstd;
  const S *x, *weight, *bias;
  T epsilon;
  template <int Threads>
  __device__ void row(const RowShape& shape, std::int64_t row) const {
    const RowPart<S, Threads> part(shape, x + row * shape.columns);
    const T inverse_n = T(1) / static_cast<T>(shape.columns);
    T center = Centered ? inverse_n * part.template reduce<reductions::Sum>([](T v) { return v; }) : T{};
    T variance = inverse_n * part.template reduce<reductions::Sum>([&](T v) { return (v - center) * (v - center); });
    T factor = T(1) / Math<T>::sqrt(variance + epsilon);
    if (!squares_fit(variance + epsilon)) {  // the same branch for all threads of the row
      constexpr T infinity = std::numeric_limits<T>::infinity();
      const T largest = part.template reduce<reductions::Maximum>([](T v) { return v < T{} ? -v : v; });
      if (largest < infinity) {
        const T scale = scale_of_squares(largest, epsilon);
        if (Centered) center = inverse_n * part.template reduce<reductions::Sum>([&](T v) { return v / scale; });
        variance = inverse_n * part.template reduce<reductions::Sum>([&](T v) {
          const T d = v / scale - center;
          return d * d;
        });
        if (Centered) center *= scale;
        factor = T(1) / Math<T>::sqrt(variance + epsilon / scale / scale) / scale;
      }
    }
    if (part.first_thread()) {
      if (Centered) mean[row] = center;
      rstd[row] = factor;
    }
    S* to = out + row * shape.columns;
    part.for_each_pack([&](std::int64_t column, int, const auto& in) {
      T scale[width<S>], shift[width<S>], result[width<S>];
      load_parameters(weight, column, shape, T(1), scale);
      load_parameters(bias, column, shape, T{}, shift);
      POOLGRAD_UNROLL
      for (int e = 0; e < width<S>; ++e) result[e] = (in[0][e] - center) * factor * scale[e] + shift[e];
      store_pack(to, column, shape, result);
    });
  }
};

/// Operands of a gradient. `partial` holds the sums over rows: RowChunks x {dweight, dbias} rows.
template <class S>
struct NormGradient {
  using T = Compute<S>;
  S* dx;
  const S *grad, *x, *weight;
  const T *mean, *rstd;
  T* partial;
};

/// grad and x of a row.
template <class S, int Threads, std::size_t Registers = 16>
using GradientPart = RowPart<S, Threads, 2, Registers>;

/// Calls f(threads per row, registers per thread for the row), both constants. A warp handles f16 and bf16 rows of up
/// to 1024 elements. A block would wait at two barriers per row.
template <class S, class F>
void with_gradient_part(std::int64_t columns, const F& f) {
  constexpr std::integral_constant<int, threads_of_short_rows> warp;
  const auto fits = [&]<std::size_t Registers>(std::integral_constant<std::size_t, Registers>) {
    return columns <= GradientPart<S, 1, Registers>::capacity * threads_of_short_rows;
  };
  constexpr std::integral_constant<std::size_t, 16> few;
  constexpr std::integral_constant<std::size_t, 32> more;
  constexpr std::integral_constant<std::size_t, 64> many;
  if (fits(few)) return f(warp, few);
  if (fits(more)) return f(warp, more);
  if (fits(many)) return f(warp, many);
  with_row_threads(columns, GradientPart<S, 1>::capacity, [&](const auto threads) { f(threads, few); });
}

/// With h = (x - mean) * rstd and u = grad * weight: dx = rstd * (u - mean(u) - h * mean(u * h)), dweight = sum(grad *
/// h), dbias = sum(grad). RMSNorm has neither mean(u) nor dbias. A block has a chunk of rows. A thread keeps its sums
/// in registers across rows, and those of further columns in `partial`. Warps with rows of their own add their sums
/// last. A launch has at most 256 chunks, about two per multiprocessor, so a thread may use more than 64 registers.
template <class S, int Threads, std::size_t Registers, bool Centered, bool Sums>
__global__ __launch_bounds__(block_of_rows<Threads>,
                             1) void norm_gradient(const __grid_constant__ RowShape shape,
                                                   const __grid_constant__ RowChunks chunks,
                                                   const __grid_constant__ NormGradient<S> all) {
  using T = Compute<S>;
  using Part = GradientPart<S, Threads, Registers>;
  constexpr bool alone = Threads > threads_per_warp;  // a block takes one row at a time
  const std::int64_t n = shape.columns;
  const T inverse_n = T(1) / static_cast<T>(n);
  const int rows_at_once = static_cast<int>(blockDim.x) / Threads, own = static_cast<int>(threadIdx.x) / Threads;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks.count; chunk += gridDim.x) {
    T weight_sum[Part::held][width<S>] = {}, bias_sum[Part::held][width<S>] = {};
    T* const partial = Sums ? all.partial + chunk * 2 * n : nullptr;
    if constexpr (Sums && alone)
      for (std::int64_t c = Part::column(Part::held); c < n; c += Part::step)
        for (int e = 0; e < width<S>; ++e)
          if (c + e < n) partial[c + e] = partial[n + c + e] = T{};
    for (std::int64_t row = chunks.begin(chunk) + own; row < chunks.end(chunk); row += rows_at_once) {
      const Part part(shape, all.grad + row * n, all.x + row * n);
      const T center = Centered ? all.mean[row] : T{}, factor = all.rstd[row];
      T sum_u{}, sum_uh{};
      part.for_each_pack([&](std::int64_t column, int held, const auto& in) {
        T scale[width<S>];
        load_parameters(all.weight, column, shape, T(1), scale);
        POOLGRAD_UNROLL
        for (int e = 0; e < width<S>; ++e) {
          if (column + e >= n) continue;
          const T g = in[0][e], h = (in[1][e] - center) * factor, u = g * scale[e];
          sum_u += u;
          sum_uh += u * h;
          if constexpr (Sums) {
            if (held >= 0) {
              weight_sum[held][e] += g * h;
              if (Centered) bias_sum[held][e] += g;
            } else {
              partial[column + e] += g * h;
              if (Centered) partial[n + column + e] += g;
            }
          }
        }
      });
      const T mean_u = Centered ? block_reduce<reductions::Sum, Threads>(sum_u) * inverse_n : T{};
      const T mean_uh = block_reduce<reductions::Sum, Threads>(sum_uh) * inverse_n;
      S* to = all.dx + row * n;
      part.for_each_pack([&](std::int64_t column, int, const auto& in) {
        T scale[width<S>], result[width<S>];
        load_parameters(all.weight, column, shape, T(1), scale);
        POOLGRAD_UNROLL
        for (int e = 0; e < width<S>; ++e) {
          const T h = (in[1][e] - center) * factor;
          result[e] = (in[0][e] * scale[e] - mean_u - h * mean_uh) * factor;
        }
        store_pack(to, column, shape, result);
      });
    }
    if constexpr (Sums) {
      const auto store = [&](T* sums, const T(&found)[Part::held][width<S>]) {
        POOLGRAD_UNROLL
        for (std::size_t p = 0; p < Part::held; ++p) {
          POOLGRAD_UNROLL
          for (int e = 0; e < width<S>; ++e)
            if (Part::column(p) + e < n) sums[Part::column(p) + e] = found[p][e];
        }
      };
      if constexpr (alone) {
        store(partial, weight_sum);
        if (Centered) store(partial + n, bias_sum);
      } else {
        constexpr int warps = threads_of_other_rows / threads_per_warp;
        POOLGRAD_SHARED(T, staged, warps * Part::capacity);
        const auto add_up = [&](T* sums, const T(&found)[Part::held][width<S>]) {
          __syncthreads();  // all threads have read the staged values
          POOLGRAD_UNROLL
          for (std::size_t p = 0; p < Part::held; ++p) {
            POOLGRAD_UNROLL
            for (int e = 0; e < width<S>; ++e) staged[own * Part::capacity + Part::column(p) + e] = found[p][e];
          }
          __syncthreads();
          for (std::int64_t c = threadIdx.x; c < n; c += blockDim.x) {
            T sum{};
            for (int w = 0; w < warps; ++w) sum += static_cast<T>(staged[w * Part::capacity + c]);
            sums[c] = sum;
          }
        };
        add_up(partial, weight_sum);
        if (Centered) add_up(partial + n, bias_sum);
      }
    }
  }
}

template <class S, bool Centered>
void norm_forward(const char* op, Stream stream, const View& out, const View& mean, const View& rstd, const View& x,
                  const View& weight, const View& bias, double epsilon) {
  using T = Compute<S>;
  for_each_row<S>(op, stream, x, {out.data, x.data, weight.data, bias.data}, {mean.data, rstd.data},
                  NormRow<S, Centered>{out.as<S>(), mean.as<T>(), rstd.as<T>(), x.as<const S>(), weight.as<const S>(),
                                       bias.as<const S>(), static_cast<T>(epsilon)});
}

template <bool Centered>
void norm_backward(const char* op, Stream stream, const View& dx, const View& dweight, const View& dbias,
                   const View& grad, const View& x, const View& mean, const View& rstd, const View& weight) {
  const Rows rows(x);
  const std::int64_t n = rows.columns;
  const bool sums = dweight.data || dbias.data;
  with_floating_type(x.dtype, [&]<class S>(S) {
    using T = Compute<S>;
    check_operands(op, stream, {dweight.data, dbias.data});
    if (x.count() > 0) check_operands(op, stream, {dx.data, grad.data, x.data, weight.data, mean.data, rstd.data});
    const RowShape shape{rows.rows, n, can_pack<S>(n, {dx.data, grad.data, x.data, weight.data})};
    NormGradient<S> all{dx.as<S>(),         grad.as<const S>(), x.as<const S>(), weight.as<const S>(),
                        mean.as<const T>(), rstd.as<const T>(), nullptr};
    const auto queue = [&]<bool Sums>(std::bool_constant<Sums>, const RowChunks& chunks) {
      with_gradient_part<S>(n, [&]<int Threads, std::size_t Registers>(std::integral_constant<int, Threads>,
                                                                       std::integral_constant<std::size_t, Registers>) {
        const Extent block = shape_of_rows(1, Threads).block;
        launch(op, &norm_gradient<S, Threads, Registers, Centered, Sums>,
               {{std::min<std::int64_t>(chunks.count, 1 << 16)}, block}, stream, shape, chunks, all);
      });
    };
    if (!sums) {
      RowChunks chunks(rows.rows);  // a chunk is the rows that a block takes at once
      chunks.size = n <= GradientPart<S, 1, 64>::capacity * threads_of_short_rows
                        ? threads_of_other_rows / threads_of_short_rows
                        : 1;
      chunks.count = (rows.rows + chunks.size - 1) / chunks.size;
      if (x.count() > 0) queue(std::false_type{}, chunks);
      return;
    }
    const RowChunks chunks(rows.rows);
    const Workspace<T> partial(stream, op, chunks.count * 2 * n);
    if (n == 0) return;
    all.partial = partial.data();
    queue(std::true_type{}, chunks);
    using Sum = Reduced<reductions::Sum, T>;
    RowChunks once(chunks.count);
    once.size = chunks.count, once.count = 1;
    for (const auto& [out, first] : {std::pair{dweight, std::int64_t{0}}, std::pair{dbias, n}})
      if (out.data)
        launch_columns<Sum, T>(op, stream, partial_input(partial.data() + first, 1, chunks.count, n, 2 * n),
                               ReduceOutput<T>(out, T(1)), once);
  });
}

}  // namespace
}  // namespace cuda

void on_cuda::layer_norm(Stream stream, const View& out, const View& mean, const View& rstd, const View& x,
                         const View& weight, const View& bias, double epsilon) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    cuda::norm_forward<S, true>("layer_norm", stream, out, mean, rstd, x, weight, bias, epsilon);
  });
}

void on_cuda::rms_norm(Stream stream, const View& out, const View& rstd, const View& x, const View& weight,
                       double epsilon) {
  with_floating_type(x.dtype, [&]<class S>(S) {
    cuda::norm_forward<S, false>("rms_norm", stream, out, {}, rstd, x, weight, {}, epsilon);
  });
}

void on_cuda::layer_norm_backward(Stream stream, const View& dx, const View& dweight, const View& dbias,
                                  const View& grad, const View& x, const View& mean, const View& rstd,
                                  const View& weight) {
  cuda::norm_backward<true>("layer_norm_backward", stream, dx, dweight, dbias, grad, x, mean, rstd, weight);
}

void on_cuda::rms_norm_backward(Stream stream, const View& dx, const View& dweight, const View& grad, const View& x,
                                const View& rstd, const View& weight) {
  cuda::norm_backward<false>("rms_norm_backward", stream, dx, dweight, {}, grad, x, {}, rstd, weight);
}

}  // namespace poolgrad::kernels
