#include "tensor/creation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/error.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"

namespace poolgrad {

namespace {
Tensor filled(const Shape& shape, double value, TensorOptions options,
              std::source_location at = std::source_location::current()) {
  if (!has_number(options.dtype, value))
    throw ValueError(fmt::format("[full] {} does not fit into {}", value, to_string(options.dtype)));
  Tensor out = Tensor::empty(shape, options, at);
  kernels::fill(current_stream(options.device), out.view(), value);
  return out;
}
}  // namespace

Tensor full(const Shape& shape, double value, TensorOptions options, CallSite) { return filled(shape, value, options); }
Tensor zeros(const Shape& shape, TensorOptions options, CallSite) { return filled(shape, 0.0, options); }
Tensor ones(const Shape& shape, TensorOptions options, CallSite) { return filled(shape, 1.0, options); }
Tensor zeros_like(const Tensor& like, CallSite) { return filled(like.shape(), 0.0, like.options()); }
Tensor ones_like(const Tensor& like, CallSite) { return filled(like.shape(), 1.0, like.options()); }
Tensor scalar(double value, TensorOptions options, CallSite) { return filled({}, value, options); }

namespace {
/// Any number fits bool: nonzero is true, as in casts.
bool fits(DType dtype, double number) { return dtype == DType::boolean || has_number(dtype, number); }
void check_fits(const char* op, DType dtype, std::initializer_list<double> numbers) {
  for (const double number : numbers)
    if (!fits(dtype, number))
      throw ValueError(fmt::format("[{}] {} does not fit into {}", op, number, to_string(dtype)));
}
/// Returns whether the dtype and all numbers are integers.
bool are_integers(DType dtype, std::initializer_list<double> numbers) {
  return !is_floating(dtype) && dtype != DType::boolean &&
         std::all_of(numbers.begin(), numbers.end(), [](double x) { return has_number(DType::i64, x); });
}

Tensor sequence(const kernels::ArithmeticSequence& numbers, std::int64_t elements, TensorOptions options,
                std::source_location at = std::source_location::current()) {
  Tensor out = Tensor::empty({elements}, options, at);
  kernels::arange(current_stream(options.device), out.view(), numbers);
  return out;
}
}  // namespace

Tensor arange(double start, double stop, double step, TensorOptions options, CallSite) {
  const double elements = std::ceil((stop - start) / step);
  if (!std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step) || step == 0.0 || elements >= 0x1p62)
    throw ValueError(fmt::format("[arange] no finite range: start {}, stop {}, step {}", start, stop, step));
  const double end = step > 0 ? std::ceil(stop) : std::floor(stop);
  if (are_integers(options.dtype, {start, end, step}))
    return detail::arange(static_cast<std::int64_t>(start), static_cast<std::int64_t>(end),
                          static_cast<std::int64_t>(step), options);
  const auto count = static_cast<std::int64_t>(std::max(0.0, elements));
  const double second = count > 1 ? start + step : start, last = start + static_cast<double>(count - 1) * step;
  if (count > 0) check_fits("arange", options.dtype, {start, second, last});
  return sequence(kernels::ArithmeticSequence::of_doubles(start, step), count, options);
}

Tensor detail::arange(std::int64_t start, std::int64_t stop, std::int64_t step, TensorOptions options) {
  if (!are_integers(options.dtype, {}))
    return poolgrad::arange(static_cast<double>(start), static_cast<double>(stop), static_cast<double>(step), options);
  const auto from = static_cast<std::uint64_t>(start), to = static_cast<std::uint64_t>(stop);
  const bool any = step > 0 ? start < stop : stop < start;
  const std::uint64_t distance = step > 0 ? to - from : from - to;
  const std::uint64_t size = step > 0 ? static_cast<std::uint64_t>(step) : 0 - static_cast<std::uint64_t>(step);
  if (step == 0 || (any && (distance - 1) / size >= std::uint64_t{1} << 62))
    throw ValueError(fmt::format("[arange] no finite range: start {}, stop {}, step {}", start, stop, step));
  const std::uint64_t before_last = any ? (distance - 1) / size : 0;
  const auto last = static_cast<std::int64_t>(from + before_last * static_cast<std::uint64_t>(step));
  if (any && options.dtype != DType::i64)  // i64 holds every bound, but a bound near 2^63 rounds up as double
    check_fits("arange", options.dtype, {static_cast<double>(start), static_cast<double>(last)});
  return sequence(kernels::ArithmeticSequence::of_integers(start, step),
                  any ? static_cast<std::int64_t>(before_last) + 1 : 0, options);
}

Tensor linspace(double start, double stop, std::int64_t elements, TensorOptions options, CallSite) {
  if (!std::isfinite(start) || !std::isfinite(stop) || elements < 0)
    throw ValueError(fmt::format("[linspace] no finite range: start {}, stop {}, elements {}", start, stop, elements));
  if (are_integers(options.dtype, {start, stop}))
    return detail::linspace(static_cast<std::int64_t>(start), static_cast<std::int64_t>(stop), elements, options);
  check_fits("linspace", options.dtype, {std::trunc(start), std::trunc(stop)});
  const auto steps = static_cast<double>(std::max<std::int64_t>(elements - 1, 1));
  const double step = std::isfinite(stop - start) ? (stop - start) / steps : stop / steps - start / steps;
  Tensor out = sequence(kernels::ArithmeticSequence::of_doubles(start, elements > 1 ? step : 0.0), elements, options);
  // Sets the last element exactly, despite rounding of the steps.
  if (elements > 1)
    kernels::fill(current_stream(options.device), out.alias(selected(out.geometry(), 0, -1)).view(), stop);
  return out;
}

Tensor detail::linspace(std::int64_t start, std::int64_t stop, std::int64_t elements, TensorOptions options) {
  if (elements < 0 || !are_integers(options.dtype, {}))
    return poolgrad::linspace(static_cast<double>(start), static_cast<double>(stop), elements, options);
  if (options.dtype != DType::i64)
    check_fits("linspace", options.dtype, {static_cast<double>(start), static_cast<double>(stop)});
  return sequence(elements > 1 ? kernels::ArithmeticSequence::between(start, stop, elements - 1)
                               : kernels::ArithmeticSequence::of_integers(start, 0),
                  elements, options);
}

Tensor eye(std::int64_t rows, std::int64_t columns, std::int64_t offset, TensorOptions options, CallSite) {
  Tensor out = filled({rows, columns == -1 ? rows : columns}, 0.0, options);
  kernels::fill(current_stream(options.device), out.alias(diagonal_of(out.geometry(), offset, 0, 1)).view(), 1.0);
  return out;
}

namespace {
void check_floating(const char* op, const Tensor& out) {
  if (!is_floating(out.dtype())) throw DTypeError("[" + std::string(op) + "] needs a floating dtype: " + describe(out));
}
/// Returns whether the dtype represents every integer from `least` to `most`.
bool holds_all(DType dtype, std::int64_t least, std::int64_t most) {
  if (!is_floating(dtype))
    return has_number(dtype, static_cast<double>(least)) && has_number(dtype, static_cast<double>(most));
  const std::int64_t bound = std::int64_t{1} << significant_bits(dtype);
  return -bound <= least && most <= bound;
}
}  // namespace

Tensor randn(const Shape& shape, TensorOptions options, Generator& generator, CallSite) {
  Tensor out = Tensor::empty(shape, options);
  check_floating("randn", out);
  kernels::normal(current_stream(options.device), generator.take(out.numel()), out.view(), 0.0, 1.0);
  return out;
}

Tensor rand(const Shape& shape, double low, double high, TensorOptions options, Generator& generator, CallSite) {
  Tensor out = Tensor::empty(shape, options);
  check_floating("rand", out);
  if (!(low <= high && std::isfinite(high - low)))
    throw ValueError("[rand] needs low <= high with a finite difference: low " + std::to_string(low) + ", high " +
                     std::to_string(high));
  kernels::uniform(current_stream(options.device), generator.take(out.numel()), out.view(), low, high);
  return out;
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options, Generator& generator,
               CallSite) {
  constexpr std::int64_t limit = std::int64_t{1} << 52;  // below it f64 is exact for low, high and their difference
  if (low >= high || low < -limit || high > limit)
    throw ValueError("[randint] needs low < high within +-2^52: low " + std::to_string(low) + ", high " +
                     std::to_string(high));
  if (!holds_all(options.dtype, low, high - 1))
    throw ValueError("[randint] " + std::string(to_string(options.dtype)) + " does not hold every whole number from " +
                     std::to_string(low) + " to " + std::to_string(high - 1));
  const Stream stream = current_stream(options.device);
  Tensor out = Tensor::empty(shape, options);
  const Tensor real = Tensor::empty(shape, {DType::f64, options.device});
  kernels::uniform(stream, generator.take(out.numel()), real.view(), 0.0, 1.0);
  // u <= 1 - 2^-53 and n <= 2^53, so floor(u * n) < n: the product never rounds up to n.
  using kernels::UnaryOp;
  kernels::unary(stream, UnaryOp::affine, real.view(), real.view(), static_cast<double>(high - low), 0.0);
  kernels::unary(stream, UnaryOp::floor, real.view(), real.view());
  kernels::unary(stream, UnaryOp::affine, real.view(), real.view(), 1.0, static_cast<double>(low));
  kernels::copy(stream, out.view(), real.view());
  return out;
}

template <class T>
Tensor from_data(std::span<const T> values, const Shape& shape, Device device, CallSite) {
  if (count(shape) != static_cast<std::int64_t>(values.size()))
    throw ShapeError("[from_data] " + std::to_string(values.size()) + " values for shape " + to_string(shape));
  Tensor out = Tensor::empty(shape, {dtype_of<T>, cpu});
  std::copy(values.begin(), values.end(), out.data<T>());
  if (device.is_cpu()) return out;
  Tensor moved = Tensor::empty(shape, {dtype_of<T>, device});
  moved.copy_from(out);
  return moved;
}

template Tensor from_data(std::span<const double>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const float>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const Half>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const BFloat16>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const std::int64_t>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const std::int32_t>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const std::uint8_t>, const Shape&, Device, CallSite);
template Tensor from_data(std::span<const bool>, const Shape&, Device, CallSite);

}  // namespace poolgrad
