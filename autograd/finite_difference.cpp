#include "autograd/finite_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "kernels/view.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

/// True if two indices may share an element: sorted by stride, each dimension has to step over all smaller ones.
bool may_overlap(const Geometry& geometry) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (int d = 0; d < geometry.shape.rank(); ++d)
    if (geometry.shape[d] > 1) dims.emplace_back(std::abs(geometry.strides[d]), geometry.shape[d]);
  std::sort(dims.begin(), dims.end());
  std::int64_t reach = 0;  // of the smaller dimensions
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

Tensor copy_with_strides(const Tensor& x) {
  const Geometry& geometry = x.geometry();
  if (x.count() == 0 || may_overlap(geometry)) return x.copy();
  const Extent touched = extent(geometry);
  Tensor copy = Tensor::empty({touched.last - touched.first + 1}, x.options()).fill(0.0);
  copy = copy.alias({geometry.shape, geometry.strides, geometry.offset - touched.first});
  return copy.copy_from(x.detach());
}

void append(std::vector<double>& all, const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  all.insert(all.end(), values.begin(), values.end());
}

Tensor element(const Tensor& x, std::int64_t index) {
  const Geometry& geometry = x.geometry();
  std::int64_t offset = geometry.offset;
  for (int d = x.rank() - 1; d >= 0; --d) {
    offset += index % geometry.shape[d] * geometry.strides[d];
    index /= geometry.shape[d];
  }
  return x.alias({{}, {}, offset});
}

double step(double x, double epsilon) { return epsilon * std::max(1.0, std::abs(x)); }

}  // namespace

std::vector<Tensor> floating(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> result;
  for (const Tensor& output : outputs)
    if (is_floating(output.dtype())) result.push_back(output);
  return result;
}

FiniteDifference::FiniteDifference(const TensorFunction& function, const std::vector<Tensor>& inputs,
                                   const std::vector<Tensor>& weights)
    : function_(function) {
  for (const Tensor& input : inputs) point_.push_back(input.defined() ? copy_with_strides(input.detach()) : input);
  for (const Tensor& weight : weights) append(weights_, weight);
}

std::vector<double> FiniteDifference::at(std::size_t input, std::int64_t index, double value) {
  NoGradGuard guard;
  Tensor place = element(point_[input], index);
  const double before = place.item();
  place.fill(value);
  std::vector<double> result;
  for (const Tensor& output : floating(function_(point_))) append(result, output);
  place.fill(before);
  if (result.size() != weights_.size())
    throw ValueError(fmt::format("[gradcheck] the function gave {} numbers at first and {} at a point nearby",
                                 weights_.size(), result.size()));
  return result;
}

double FiniteDifference::weighted_difference(const std::vector<double>& high, const std::vector<double>& low) const {
  double sum = 0.0;
  for (std::size_t i = 0; i < weights_.size(); ++i) sum += weights_[i] * (high[i] - low[i]);
  return sum;
}

double FiniteDifference::central(std::size_t input, std::int64_t index, double epsilon) {
  const double x = element(point_[input], index).item();
  const double high = x + step(x, epsilon), low = x - step(x, epsilon);
  return weighted_difference(at(input, index, high), at(input, index, low)) / (high - low);
}

std::pair<double, double> FiniteDifference::one_sided(std::size_t input, std::int64_t index, double epsilon) {
  const double x = element(point_[input], index).item();
  const double high = x + step(x, epsilon), low = x - step(x, epsilon);
  const std::vector<double> here = at(input, index, x);
  return {weighted_difference(at(input, index, high), here) / (high - x),
          weighted_difference(here, at(input, index, low)) / (x - low)};
}

}  // namespace poolgrad
