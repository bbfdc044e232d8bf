#include "tensor/geometry.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

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
  // The overflow check skips sizes of zero, so that the strides of an empty tensor fit as well.
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

bool Geometry::contiguous() const {
  std::int64_t expected = 1;
  bool gaps = false;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) gaps = true;
    expected *= shape[d];
  }
  return !gaps;
}

Extent extent(const Geometry& x) {
  Extent e{x.offset, x.offset};
  for (int d = 0; d < x.shape.rank(); ++d) {
    if (x.shape[d] == 0) return {};
    // Saturates: a wrapped sum could appear to lie inside a storage.
    const bool back = x.strides[d] < 0;
    std::int64_t& end = back ? e.first : e.last;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(x.shape[d] - 1, x.strides[d], &reach) || __builtin_add_overflow(end, reach, &end))
      end = back ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
  }
  return e;
}

bool repeats_elements(const Geometry& x) {
  if (count(x.shape) == 0) return false;
  std::pair<std::int64_t, std::int64_t> steps[max_rank];  // stride and size, sorted by stride
  int dims = 0;
  for (int d = 0; d < x.shape.rank(); ++d)
    if (x.shape[d] > 1) steps[dims++] = {std::abs(x.strides[d]), x.shape[d]};
  std::sort(steps, steps + dims);
  std::int64_t reach = 0;  // of all smaller steps together
  for (int d = 0; d < dims; ++d) {
    if (steps[d].first <= reach) return true;
    reach += steps[d].first * (steps[d].second - 1);
  }
  return false;
}

View view_at(void* base, DType dtype, const Geometry& x) {
  View view;
  if (base) view.data = static_cast<std::byte*>(base) + x.offset * static_cast<std::int64_t>(size_of(dtype));
  view.dtype = dtype;
  view.rank = x.shape.rank();
  std::copy(x.shape.begin(), x.shape.end(), view.shape);
  std::copy(x.strides.begin(), x.strides.end(), view.strides);
  return view;
}

Geometry contiguous_geometry(const Shape& shape) {
  count(shape);
  return {shape, contiguous_strides(shape), 0};
}

Shape infer_shape(const char* op, const Shape& wanted, const Shape& present) {
  const std::int64_t elements = count(present);
  const auto negative = [](std::int64_t size) { return size < 0; };
  if (std::count(wanted.begin(), wanted.end(), -1) > 1)
    throw ShapeError("[" + std::string(op) + "] only one size can be -1: " + to_string(wanted) + " for " +
                     to_string(present));
  Shape shape = wanted;
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown != shape.end()) {
    *unknown = 1;
    const bool known = std::none_of(shape.begin(), shape.end(), negative);
    const std::int64_t others = known ? count(shape) : 0;
    *unknown = others > 0 ? elements / others : -1;  // others == 0 is ambiguous: rejected below
  }
  if (std::any_of(shape.begin(), shape.end(), negative) || count(shape) != elements)
    throw ShapeError("[" + std::string(op) + "] shape " + to_string(wanted) + " does not hold the " +
                     std::to_string(elements) + " elements of " + to_string(present));
  return shape;
}

std::optional<Geometry> reshaped(const Geometry& x, const Shape& wanted) {
  const std::int64_t elements = count(x.shape);
  Geometry out = contiguous_geometry(infer_shape("reshape", wanted, x.shape));
  out.offset = x.offset;
  if (elements == 0) return out;

  // Dimensions of x that are evenly spaced in memory form a run. Whole dimensions of the result must fill each run,
  // from the back.
  int d = out.shape.rank() - 1;
  for (int last = x.shape.rank() - 1; last >= 0;) {
    std::int64_t run = x.shape[last], step = x.strides[last];
    int first = last;
    for (; first > 0; --first) {
      if (x.shape[first - 1] == 1) continue;
      if (run == 1)
        step = x.strides[first - 1];
      else if (x.strides[first - 1] != run * step)
        break;
      run *= x.shape[first - 1];
    }
    std::int64_t taken = 1;
    for (; d >= 0 && (taken < run || out.shape[d] == 1); --d) {
      out.strides[d] = taken * step;
      taken *= out.shape[d];
    }
    if (taken != run) return std::nullopt;
    last = first - 1;
  }
  return out;
}

Geometry permuted(const Geometry& x, const Dims& order) {
  bool used[max_rank] = {};
  Geometry out = x;
  bool valid = order.rank() == x.shape.rank();
  for (int d = 0; valid && d < order.rank(); ++d) {
    const int from = normalize_dim("permute", order[d], x.shape);
    valid = !used[from];
    used[from] = true;
    out.shape[d] = x.shape[from];
    out.strides[d] = x.strides[from];
  }
  if (!valid)
    throw ShapeError("[permute] order " + to_string(order) + " is not a permutation of the dimensions of " +
                     to_string(x.shape));
  return out;
}

Geometry transposed(const Geometry& x, std::int64_t dim0, std::int64_t dim1) {
  const int a = normalize_dim("transpose", dim0, x.shape), b = normalize_dim("transpose", dim1, x.shape);
  Geometry out = x;
  std::swap(out.shape[a], out.shape[b]);
  std::swap(out.strides[a], out.strides[b]);
  return out;
}

Geometry sliced(const Geometry& x, std::int64_t dim, std::int64_t start, std::int64_t stop, std::int64_t step) {
  const int d = normalize_dim("slice", dim, x.shape);
  if (step <= 0) throw ValueError("[slice] step " + std::to_string(step) + " is not positive: " + to_string(x.shape));
  const std::int64_t size = x.shape[d];
  const auto clip = [size](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  start = clip(start);
  stop = std::max(start, clip(stop));
  Geometry out = x;
  out.shape[d] = (stop - start) / step + ((stop - start) % step != 0);
  if (out.shape[d] > 0) out.offset += start * x.strides[d];
  if (out.shape[d] > 1) out.strides[d] = step * x.strides[d];
  return out;
}

Geometry selected(const Geometry& x, std::int64_t dim, std::int64_t index) {
  const int d = normalize_dim("select", dim, x.shape);
  const std::int64_t size = x.shape[d];
  if (index < -size || index >= size)
    throw IndexError("[select] index " + std::to_string(index) + " is out of range for dimension " + std::to_string(d) +
                     " of shape " + to_string(x.shape));
  Geometry out = x;
  out.offset += (index < 0 ? index + size : index) * x.strides[d];
  out.shape.erase(d);
  out.strides.erase(d);
  return out;
}

Geometry expanded(const Geometry& x, const Shape& shape) {
  const int lead = shape.rank() - x.shape.rank();
  Geometry out{shape, Strides::filled(shape.rank(), 0), x.offset};
  bool fits = lead >= 0;
  for (int d = 0; fits && d < shape.rank(); ++d) {
    if (d < lead) {
      fits = shape[d] >= 0;
    } else if (shape[d] == -1 || shape[d] == x.shape[d - lead]) {
      out.shape[d] = x.shape[d - lead];
      out.strides[d] = x.strides[d - lead];
    } else {
      fits = x.shape[d - lead] == 1 && shape[d] >= 0;
    }
  }
  if (!fits) throw ShapeError("[expand] " + to_string(x.shape) + " does not broadcast to " + to_string(shape));
  count(out.shape);
  return out;
}

Geometry squeezed(const Geometry& x, std::int64_t dim) {
  const int d = normalize_dim("squeeze", dim, x.shape);
  if (x.shape[d] != 1)
    throw ShapeError("[squeeze] dimension " + std::to_string(d) + " of shape " + to_string(x.shape) + " is not 1");
  return selected(x, d, 0);
}

Geometry unsqueezed(const Geometry& x, std::int64_t dim) {
  const int rank = x.shape.rank();
  if (dim < -rank - 1 || dim > rank)
    throw IndexError("[unsqueeze] dimension " + std::to_string(dim) + " is out of range for shape " +
                     to_string(x.shape));
  const int d = static_cast<int>(dim < 0 ? dim + rank + 1 : dim);
  Geometry out = x;
  out.shape.insert(d, 1);
  out.strides.insert(d, d < rank ? x.shape[d] * x.strides[d] : 1);
  return out;
}

Geometry diagonal_of(const Geometry& x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1) {
  const int a = normalize_dim("diagonal", dim0, x.shape), b = normalize_dim("diagonal", dim1, x.shape);
  if (a == b)
    throw IndexError("[diagonal] dimension " + std::to_string(a) + " is named twice for shape " + to_string(x.shape));
  const std::int64_t row = std::max<std::int64_t>(-offset, 0), column = std::max<std::int64_t>(offset, 0);
  const std::int64_t length = std::max<std::int64_t>(std::min(x.shape[a] - row, x.shape[b] - column), 0);
  Geometry out = x;
  if (length > 0) out.offset += row * x.strides[a] + column * x.strides[b];
  for (const int d : {std::max(a, b), std::min(a, b)}) {
    out.shape.erase(d);
    out.strides.erase(d);
  }
  out.shape.append(length);
  out.strides.append(x.strides[a] + x.strides[b]);
  return out;
}

Geometry unfolded(const Geometry& x, std::int64_t dim, std::int64_t size, std::int64_t step, std::int64_t dilation) {
  const int d = normalize_dim("unfold", dim, x.shape);
  const std::string window = "window of " + std::to_string(size) + " elements, step " + std::to_string(step) +
                             ", dilation " + std::to_string(dilation);
  if (size < 1 || step < 1 || dilation < 1)
    throw ValueError("[unfold] size, step and dilation must be at least 1: " + window + " for " + to_string(x.shape));
  std::int64_t reach = 0;  // from a window's first element to its last
  if (__builtin_mul_overflow(size - 1, dilation, &reach) || reach >= x.shape[d])
    throw ShapeError("[unfold] a " + window + " does not fit into dimension " + std::to_string(d) + " of shape " +
                     to_string(x.shape));
  Geometry out = x;
  out.shape[d] = (x.shape[d] - reach - 1) / step + 1;
  if (out.shape[d] > 1) out.strides[d] = step * x.strides[d];
  out.shape.append(size);
  out.strides.append(size > 1 ? dilation * x.strides[d] : x.strides[d]);
  return out;
}

}  // namespace poolgrad
