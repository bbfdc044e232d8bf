#include "tensor/shape.h"

#include <algorithm>

#include "allocator/error.h"

namespace poolgrad {

namespace {

void check_rank(std::size_t rank) {
  if (rank > static_cast<std::size_t>(max_rank))
    throw ShapeError("[shape] " + std::to_string(rank) + " dimensions: at most " + std::to_string(max_rank));
}

}  // namespace

Dims::Dims(std::span<const std::int64_t> values) : rank_(static_cast<int>(values.size())) {
  check_rank(values.size());
  std::copy(values.begin(), values.end(), values_);
}

Dims Dims::filled(int rank, std::int64_t value) {
  check_rank(static_cast<std::size_t>(rank));
  Dims dims;
  dims.rank_ = rank;
  std::fill_n(dims.values_, rank, value);
  return dims;
}

void Dims::append(std::int64_t value) { insert(rank_, value); }

void Dims::insert(int position, std::int64_t value) {
  check_rank(static_cast<std::size_t>(rank_) + 1);
  std::copy_backward(values_ + position, values_ + rank_, values_ + rank_ + 1);
  values_[position] = value;
  ++rank_;
}

void Dims::erase(int position) {
  std::copy(values_ + position + 1, values_ + rank_, values_ + position);
  values_[--rank_] = 0;
}

std::int64_t count(const Shape& shape) {
  // Sizes of zero are left out of the overflow check's product, so that the strides of an empty tensor fit as well.
  std::int64_t product = 1;
  bool empty = false;
  for (std::int64_t size : shape) {
    if (size < 0) throw ShapeError("[shape] negative size: " + to_string(shape));
    if (size == 0)
      empty = true;
    else if (__builtin_mul_overflow(product, size, &product))
      throw ShapeError("[shape] more than 2^63 - 1 elements: " + to_string(shape));
  }
  return empty ? 0 : product;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t next = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    strides[d] = next;
    next *= shape[d];
  }
  return strides;
}

std::string to_string(const Dims& dims) {
  std::string text = "(";
  for (int d = 0; d < dims.rank(); ++d) {
    if (d) text += ", ";
    text += std::to_string(dims[d]);
  }
  return text + (dims.rank() == 1 ? ",)" : ")");
}

int normalize_dim(const char* op, std::int64_t dim, const Shape& shape) {
  const std::int64_t rank = shape.rank();
  if (dim < -rank || dim >= rank)
    throw IndexError("[" + std::string(op) + "] dimension " + std::to_string(dim) + " is out of range for shape " +
                     to_string(shape));
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

Dims unravel(std::int64_t number, const Shape& shape) {
  Dims index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = number % shape[d];
    number /= shape[d];
  }
  return index;
}

std::optional<Shape> broadcast_shapes(const Shape& a, const Shape& b) {
  const bool longer = a.rank() >= b.rank();
  const Shape& shorter = longer ? b : a;
  Shape out = longer ? a : b;
  const int lead = out.rank() - shorter.rank();
  for (int d = 0; d < shorter.rank(); ++d) {
    std::int64_t& size = out[lead + d];
    if (size == 1) size = shorter[d];
    if (shorter[d] != 1 && shorter[d] != size) return std::nullopt;
  }
  return out;
}

}  // namespace poolgrad
