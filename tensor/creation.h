// New tensors. In traces the line that calls one of these has made it; see CallSite.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/generator.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// One value everywhere, rounded to a floating dtype; row-major. All throw ShapeError, OutOfMemoryError, and ValueError
/// where the dtype is one of integers or bools and the value is none of them.
Tensor zeros(const Shape& shape, TensorOptions options = {}, CallSite = {});
Tensor ones(const Shape& shape, TensorOptions options = {}, CallSite = {});
Tensor full(const Shape& shape, double value, TensorOptions options = {}, CallSite = {});
Tensor zeros_like(const Tensor& like, CallSite = {});
Tensor ones_like(const Tensor& like, CallSite = {});
/// start, start + step, ... below stop (one dimension), exact in integer dtypes. Throws ValueError for step 0, a
/// non-finite bound, and numbers that the dtype does not have.
Tensor arange(double start, double stop, double step = 1.0, TensorOptions options = {}, CallSite = {});
/// `elements` numbers at even distances from start to stop, both included; a single one is start. Throws ValueError for
/// a negative number, a non-finite bound, and one beyond the dtype's range; integers are cut towards 0, and between
/// whole bounds they are exact.
Tensor linspace(double start, double stop, std::int64_t elements, TensorOptions options = {}, CallSite = {});
namespace detail {
Tensor arange(std::int64_t start, std::int64_t stop, std::int64_t step, TensorOptions options);
Tensor linspace(std::int64_t start, std::int64_t stop, std::int64_t elements, TensorOptions options);
}  // namespace detail
/// The same by bounds of i64, which need not be doubles.
template <std::integral Start, std::integral Stop, std::integral Step = int>
Tensor arange(Start start, Stop stop, Step step = 1, TensorOptions options = {}, CallSite = {}) {
  return detail::arange(static_cast<std::int64_t>(start), static_cast<std::int64_t>(stop),
                        static_cast<std::int64_t>(step), options);
}
template <std::integral Start, std::integral Stop>
Tensor linspace(Start start, Stop stop, std::int64_t elements, TensorOptions options = {}, CallSite = {}) {
  return detail::linspace(static_cast<std::int64_t>(start), static_cast<std::int64_t>(stop), elements, options);
}
/// (rows, columns) with ones at (i, i + offset) and zeros elsewhere; columns = rows unless given.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, std::int64_t offset = 0, TensorOptions options = {},
           CallSite = {});
/// Normal and uniform [low, high) numbers from `generator`, row-major order, the same on every device; other
/// dtypes get roundings of the same numbers. Throws DTypeError unless the dtype is floating, ValueError unless
/// low <= high are finite and high - low is, too.
Tensor randn(const Shape& shape, TensorOptions options = {}, Generator& generator = default_generator(), CallSite = {});
Tensor uniform(const Shape& shape, double low = 0.0, double high = 1.0, TensorOptions options = {},
               Generator& generator = default_generator(), CallSite = {});
/// Whole numbers in [low, high), within +-2^52; i64 unless the options say otherwise. Made of 53 random bits each: no
/// value is more likely than another by more than a fraction (high - low) / 2^53. Throws ValueError, also where the
/// dtype does not hold all of them: in f32 within +-2^24, in f16 2^11, in bf16 2^8.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options = {.dtype = DType::i64},
               Generator& generator = default_generator(), CallSite = {});
/// A tensor of dtype_of<T> with a copy of `values`, whose number must be that of `shape`; moved to `device`.
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
/// A 0-dimensional tensor.
Tensor scalar(double value, TensorOptions options = {}, CallSite = {});

}  // namespace poolgrad
