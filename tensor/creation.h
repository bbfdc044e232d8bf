// Tensor creation. In traces the calling line owns the tensor; see CallSite.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Return a row-major tensor with one value everywhere, rounded to a floating dtype. All throw ShapeError and
/// OutOfMemoryError, and ValueError for a value that an integer or bool dtype cannot represent.
Tensor zeros(const Shape& shape, TensorOptions options = {}, CallSite = {});
Tensor ones(const Shape& shape, TensorOptions options = {}, CallSite = {});
Tensor full(const Shape& shape, double value, TensorOptions options = {}, CallSite = {});
Tensor zeros_like(const Tensor& like, CallSite = {});
Tensor ones_like(const Tensor& like, CallSite = {});
/// Returns start, start + step, ... below stop (one dimension), exact in integer dtypes. Throws ValueError for step 0,
/// a non-finite bound, and numbers that the dtype cannot represent.
Tensor arange(double start, double stop, double step = 1.0, TensorOptions options = {}, CallSite = {});
/// Returns `elements` evenly spaced numbers from start to stop, both included; a single one is start. Integer dtypes
/// truncate toward 0 and are exact between integer bounds. Throws ValueError for a negative count, a non-finite bound,
/// and one outside the dtype's range.
Tensor linspace(double start, double stop, std::int64_t elements, TensorOptions options = {}, CallSite = {});
namespace detail {
Tensor arange(std::int64_t start, std::int64_t stop, std::int64_t step, TensorOptions options);
Tensor linspace(std::int64_t start, std::int64_t stop, std::int64_t elements, TensorOptions options);
}  // namespace detail
/// The same with i64 bounds, exact even if a double cannot represent them.
template <std::integral Start, std::integral Stop, std::integral Step = int>
Tensor arange(Start start, Stop stop, Step step = 1, TensorOptions options = {}, CallSite = {}) {
  return detail::arange(static_cast<std::int64_t>(start), static_cast<std::int64_t>(stop),
                        static_cast<std::int64_t>(step), options);
}
template <std::integral Start, std::integral Stop>
Tensor linspace(Start start, Stop stop, std::int64_t elements, TensorOptions options = {}, CallSite = {}) {
  return detail::linspace(static_cast<std::int64_t>(start), static_cast<std::int64_t>(stop), elements, options);
}
/// Returns (rows, columns) with ones at (i, i + offset) and zeros elsewhere; columns defaults to rows.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, std::int64_t offset = 0, TensorOptions options = {},
           CallSite = {});
/// Return normal numbers, or uniform ones in [low, high), from `generator` in row-major order. Numbers are the same on
/// every device; other dtypes round the same numbers. Throw DTypeError unless the dtype is floating. Throw ValueError
/// unless low <= high are finite and high - low is, too.
Tensor randn(const Shape& shape, TensorOptions options = {}, Generator& generator = default_generator(), CallSite = {});
Tensor rand(const Shape& shape, double low = 0.0, double high = 1.0, TensorOptions options = {},
            Generator& generator = default_generator(), CallSite = {});
/// Returns integers in [low, high), within +-2^52; i64 by default. Each uses 53 random bits: probabilities of two
/// values differ by at most a fraction (high - low) / 2^53. Throws ValueError, also if the dtype cannot represent them
/// all: f32 holds +-2^24, f16 +-2^11, bf16 +-2^8.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options = {.dtype = DType::i64},
               Generator& generator = default_generator(), CallSite = {});
/// Returns a tensor of dtype_of<T> on `device` with a copy of `values`. Their number must match `shape`.
template <class T>
Tensor from_data(std::span<const T> values, const Shape& shape, Device device = cpu, CallSite = {});
template <class T>
Tensor from_data(std::initializer_list<T> values, const Shape& shape, Device device = cpu, CallSite = {}) {
  return from_data(std::span<const T>(values.begin(), values.size()), shape, device);
}
template <class T>
Tensor from_data(const std::vector<T>& values, const Shape& shape, Device device = cpu, CallSite = {}) {
  return from_data(std::span<const T>(values), shape, device);
}
/// Returns a 0-dimensional tensor.
Tensor scalar(double value, TensorOptions options = {}, CallSite = {});

}  // namespace poolgrad
