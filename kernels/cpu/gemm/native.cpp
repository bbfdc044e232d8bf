// Packed matrix product after Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). B is
// packed once per block of k. It streams from the second-level cache past one panel of A in the first-level cache.
#include <algorithm>
#include <type_traits>

#include "kernels/cpu/gemm/backends.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/workspace.h"
#include "kernels/parallel.h"
#include "kernels/with_type.h"

namespace poolgrad::kernels {
namespace {

using simd::Compute;
using simd::lanes;
using simd::Vec;

constexpr std::int64_t max_depth = 384;               // k of one packed block
constexpr std::int64_t max_columns = 1024;            // n of one packed block of B
constexpr std::int64_t max_partial_rows = 1024;       // m of a part with partial sums beside C
constexpr double parallel_work = 128. * 128. * 128.;  // below this, a second thread costs more than it gains

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Destination of a block of the product: C, or an f32 buffer until k is exhausted if C has a half type S.
template <class S>
struct Target {
  S* c;
  Compute<S>* partial;
  std::int64_t c_stride, partial_stride;
  const S* bias;
  Compute<S> alpha, beta;
  bool first, last;

  Target at(std::int64_t row, std::int64_t column) const {
    Target moved = *this;
    moved.c += row * c_stride + column;
    moved.partial += row * partial_stride + column;
    if (bias) moved.bias += column;
    return moved;
  }
};

/// Multiplies two packed panels and writes all rows of the block to `out`.
template <class T, std::size_t Rows, std::size_t Vectors>
void multiply_panels(const T* a, const T* b, std::int64_t depth, T* out, std::int64_t stride) {
  Vec<T> sum[Rows][Vectors] = {};
  multiply_add<T, Rows, Vectors, 1, block_rows>(sum, depth, a, b, block_columns<T>);
#pragma GCC unroll 16
  for (std::size_t r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (std::size_t v = 0; v < Vectors; ++v)
      simd::store(out + static_cast<std::int64_t>(r) * stride + static_cast<std::int64_t>(v) * lanes<T>, sum[r][v]);
}

/// The smallest block with at least `rows` rows, one or two vectors wide. Few heights, because each is a lot of code.
template <class T>
struct RegisterBlock {
  std::int64_t rows, columns;
  void (*multiply)(const T* a, const T* b, std::int64_t depth, T* out, std::int64_t stride);

  template <std::size_t Rows>
  static RegisterBlock of_height(std::int64_t columns) {
    if (columns > lanes<T>) return {Rows, 2 * lanes<T>, &multiply_panels<T, Rows, 2>};
    return {Rows, lanes<T>, &multiply_panels<T, Rows, 1>};
  }
  static RegisterBlock holding(std::int64_t rows, std::int64_t columns) {
    if (rows <= 2) return of_height<2>(columns);
    if (rows <= block_rows / 2) return of_height<block_rows / 2>(columns);
    return of_height<block_rows>(columns);
  }
};

/// Finishes a block of sums: alpha, earlier partial sums or beta and bias, each rounded separately, then the store.
template <class S>
void finish_block(Compute<S>* sums, std::int64_t rows, std::int64_t columns, const Target<S>& target) {
  using T = Compute<S>;
  for (std::int64_t r = 0; r < rows; ++r, sums += block_columns<T>) {
    const auto each = [&](const auto& body) {
      for (std::int64_t at = 0; at < columns; at += lanes<T>) body(simd::load<T>(sums + at), at);
    };
    const auto add = [&](const auto* from, T factor) {
      each([&](const Vec<T>& value, std::int64_t at) {
        simd::store(sums + at, value + factor * simd::load_partial<T>(from + at, columns - at));
      });
    };
    const auto write = [&](auto* to) {
      each([&](const Vec<T>& value, std::int64_t at) { simd::store_partial(to + at, value, columns - at); });
    };
    S* c = target.c + r * target.c_stride;
    T* partial = target.partial + r * target.partial_stride;
    if (target.alpha != T(1))
      each([&](const Vec<T>& value, std::int64_t at) { simd::store(sums + at, value * target.alpha); });
    if (!target.first) {
      add(partial, T(1));
    } else {
      if (target.beta != T{}) add(c, target.beta);
      if (target.bias) add(target.bias, T(1));
    }
    if (target.last)
      write(c);
    else
      write(partial);
  }
}

/// One register block of the product of packed panels.
template <class S>
void multiply_block(const Compute<S>* a, const Compute<S>* b, std::int64_t depth, std::int64_t rows,
                    std::int64_t columns, const Target<S>& target) {
  using T = Compute<S>;
  for (std::int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(target.partial + r * target.partial_stride, 1);
    __builtin_prefetch(target.partial + r * target.partial_stride + lanes<T>, 1);
  }
  columns = std::min<std::int64_t>(columns, block_columns<T>);
  const auto block = RegisterBlock<T>::holding(rows, columns);
  const bool is_plain = target.alpha == T(1) && target.first && target.beta == T{} && !target.bias;
  const bool goes_to_partial =
      std::is_same_v<S, T> || !target.last;  // C and partial are the same memory unless S rounds
  if (is_plain && goes_to_partial && rows == block.rows && columns == block.columns)
    return block.multiply(a, b, depth, target.partial, target.partial_stride);
  alignas(simd::vector_bytes) T sums[block_rows * block_columns<T>];
  block.multiply(a, b, depth, sums, block_columns<T>);
  finish_block<S>(sums, rows, columns, target);
}

template <class S>
constexpr std::int64_t packed_b_size(std::int64_t depth, std::int64_t columns) {
  return divide_up(columns, block_columns<Compute<S>>) * block_columns<Compute<S>> * depth;
}
/// k in equal blocks of at most max_depth.
constexpr std::int64_t packed_depth(std::int64_t k) {
  return divide_up(k, std::max<std::int64_t>(1, divide_up(k, max_depth)));
}
constexpr std::int64_t packed_a_size = block_rows * max_depth;

struct Part {
  std::int64_t batch, row, rows, column, columns;
};

/// Computes one part of C. `scratch` holds a panel of A, a block of B and, for C of a half type, partial sums.
template <class S, class O>
void multiply_part(const Gemm& g, const Part& part, const S* a, const S* b, O* c, Compute<S>* scratch) {
  using T = Compute<S>;
  a += part.batch * g.stride_a;
  b += part.batch * g.stride_b;
  c += part.batch * g.stride_c;
  T* packed_a = scratch;
  T* packed_b = packed_a + packed_a_size + panel_slack<T>;
  const std::int64_t depth_block = packed_depth(g.k);
  for (std::int64_t column = part.column; column < part.column + part.columns; column += max_columns) {
    const std::int64_t columns = std::min(max_columns, part.column + part.columns - column);
    Target<O> target{};
    target.c = c + part.row * g.ldc + column;
    target.c_stride = g.ldc;
    if constexpr (std::is_same_v<O, T>) {
      target.partial = target.c;
      target.partial_stride = g.ldc;
    } else {
      target.partial = packed_b + packed_b_size<S>(depth_block, std::min(max_columns, part.columns)) + panel_slack<T>;
      target.partial_stride = columns;
    }
    target.bias = g.bias ? static_cast<const O*>(g.bias) + column : nullptr;
    target.alpha = static_cast<T>(g.alpha);
    target.beta = static_cast<T>(g.beta);
    std::int64_t p = 0;
    do {  // once even for k == 0
      const std::int64_t depth = std::min(depth_block, g.k - p);
      target.first = p == 0;
      target.last = p + depth == g.k;
      for (std::int64_t j = 0; depth > 0 && j < columns; j += block_columns<T>)
        pack_panel<block_columns<T>>(packed_b + j * depth,
                                     g.transpose_b ? b + (column + j) * g.ldb + p : b + p * g.ldb + column + j, g.ldb,
                                     g.transpose_b, std::min<std::int64_t>(block_columns<T>, columns - j), depth);
      for (std::int64_t i = 0; i < part.rows; i += block_rows) {
        const std::int64_t rows = std::min<std::int64_t>(block_rows, part.rows - i), row = part.row + i;
        if (depth > 0)
          pack_panel<block_rows>(packed_a, g.transpose_a ? a + p * g.lda + row : a + row * g.lda + p, g.lda,
                                 !g.transpose_a, rows, depth);
        for (std::int64_t j = 0; j < columns; j += block_columns<T>)
          multiply_block<O>(packed_a, packed_b + j * depth, depth, rows, columns - j, target.at(i, j));
      }
      p += depth_block;
    } while (p < g.k);
  }
}

/// Partition of C with the fewest packed lines, and its scratch. The partition does not change any element's
/// arithmetic.
template <class S, class O>
struct Cut {
  using T = Compute<S>;

  explicit Cut(const Gemm& shape) : g(shape) {
    if (g.batch > 1 && g.stride_b == 0 && !g.transpose_a && g.stride_a == g.m * g.lda && g.stride_c == g.m * g.ldc) {
      g.m *= g.batch;  // one tall product
      g.batch = 1;
    }
    const double work = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
    const int threads = work * static_cast<double>(g.batch) < parallel_work ? 1 : num_threads();
    const std::int64_t wanted = g.batch >= threads ? 1 : divide_up(threads, g.batch);
    std::int64_t best = g.m + g.n + 1;
    for (std::int64_t r = 1; r <= wanted; ++r) {
      if (wanted % r) continue;
      const std::int64_t c = wanted / r;
      const std::int64_t lines = divide_up(g.m, r) + divide_up(g.n, c);
      if (lines < best) best = lines, row_parts = r, column_parts = c;
    }
    const bool has_partial_sums = !std::is_same_v<O, T> && g.k > max_depth;
    rows = divide_up(g.m, row_parts);
    if (has_partial_sums) rows = std::min(rows, max_partial_rows);
    rows = divide_up(rows, block_rows) * block_rows;
    columns = divide_up(divide_up(g.n, column_parts), block_columns<T>) * block_columns<T>;
    row_parts = divide_up(g.m, rows);
    column_parts = divide_up(g.n, columns);
    parts = g.batch * row_parts * column_parts;
    team = static_cast<int>(std::min<std::int64_t>(threads, parts));

    const std::int64_t most = std::min(max_columns, columns);
    scratch = packed_a_size + packed_b_size<S>(packed_depth(g.k), most) + 2 * panel_slack<T>;
    if (has_partial_sums) scratch += rows * most;
    scratch = divide_up(scratch, 32) * 32;
  }

  Gemm g;  // one entry of the batch, or the whole batch as one tall product
  std::int64_t row_parts = 1, column_parts = 1, parts = 1;
  std::int64_t rows = 0, columns = 0;  // of a part
  int team = 1;                        // threads
  std::int64_t scratch = 0;            // elements per thread
};

template <class S, class O>
void multiply(const Gemm& shape, const S* a, const S* b, O* c) {
  const Cut<S, O> cut(shape);
  const Workspace<Compute<S>> scratch("gemm", cut.scratch * cut.team);
  const auto run = [&](std::int64_t index, int worker) {
    const std::int64_t of_batch = cut.row_parts * cut.column_parts, batch = index / of_batch, rest = index % of_batch;
    Part part{batch, rest / cut.column_parts * cut.rows, cut.rows, rest % cut.column_parts * cut.columns, cut.columns};
    part.rows = std::min(cut.rows, cut.g.m - part.row);
    part.columns = std::min(cut.columns, cut.g.n - part.column);
    multiply_part<S, O>(cut.g, part, a, b, c, scratch.data() + cut.scratch * worker);
  };
  if (cut.team > 1) return parallel_items(cut.parts, run);
  for (std::int64_t index = 0; index < cut.parts; ++index) run(index, 0);
}

/// Calls body(S{}, O{}) with the element types of the operands and of the product.
template <class Body>
auto with_types(const Gemm& shape, const Body& body) {
  return with_floating_type(shape.dtype, [&]<class S>(S) {
    if (shape.f32_out && sizeof(S) == 2) return body(S{}, Compute<S>{});
    return body(S{}, S{});
  });
}

}  // namespace

void gemm_native(const Gemm& shape, const void* a, const void* b, void* c) {
  with_types(shape, [&]<class S, class O>(S, O) {
    multiply<S, O>(shape, static_cast<const S*>(a), static_cast<const S*>(b), static_cast<O*>(c));
  });
}

std::int64_t gemm_native_scratch(const Gemm& shape) {
  return with_types(shape, [&]<class S, class O>(S, O) {
    const Cut<S, O> cut(shape);
    return cut.scratch * cut.team * static_cast<std::int64_t>(sizeof(Compute<S>));
  });
}

}  // namespace poolgrad::kernels
