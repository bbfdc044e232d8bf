#include "autograd/finite_difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "allocator/error.h"
#include "kernels/view.h"
#include "tensor/grad_mode.h"

namespace poolgrad {
namespace {

std::int64_t place_of(const Geometry& geometry, std::int64_t index) {
  std::int64_t place = geometry.offset;
  const Dims at = unravel(index, geometry.shape);
  for (int d = 0; d < geometry.shape.rank(); ++d) place += at[d] * geometry.strides[d];
  return place;
}

/// Returns the offsets of the elements in the storage, in ascending order. There are few, since each costs calls of the
/// function.
std::vector<std::int64_t> places(const Tensor& x) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < x.numel(); ++i) result.push_back(place_of(x.geometry(), i));
  std::ranges::sort(result);
  return result;
}

bool repeats_a_place(const Tensor& x) {
  const std::vector<std::int64_t> all = places(x);
  return std::ranges::adjacent_find(all) != all.end();
}

Tensor copy_with_strides(const Tensor& x) {
  const Geometry& geometry = x.geometry();
  if (x.numel() == 0 || repeats_a_place(x)) return x.copy();
  const Extent touched = extent(geometry);
  Tensor copy = Tensor::empty({touched.last - touched.first + 1}, x.options()).fill(0.0);
  copy = copy.alias({geometry.shape, geometry.strides, geometry.offset - touched.first});
  return copy.copy_from(x.detach());
}

void append(std::vector<double>& all, const Tensor& tensor) {
  const std::vector<double> values = tensor.to_vector<double>();
  all.insert(all.end(), values.begin(), values.end());
}

Tensor element(const Tensor& x, std::int64_t index) { return x.alias({{}, {}, place_of(x.geometry(), index)}); }

double step(double x, double epsilon) { return epsilon * std::max(1.0, std::abs(x)); }

/// Returns whether a step of an element of `a` also moves an element of `b`.
bool share_elements(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || !a.shares_storage_with(b)) return false;
  const std::vector<std::int64_t> left = places(a), right = places(b);
  std::vector<std::int64_t> both;
  std::ranges::set_intersection(left, right, std::back_inserter(both));
  return !both.empty();
}

/// Returns the number of roundings of an output. f16 and bf16 values come from f32 and are rounded once. Functions in
/// f32 and f64 are off by up to two units in the last place.
double roundings(double roundoff) { return roundoff <= unit_roundoff(DType::f32) ? 4.0 : 1.0; }

/// Writes an element and restores its value at the end, also after an exception.
class Perturbation {
 public:
  Perturbation(const Tensor& place, double value) : place_(place), before_(place.item()) { place_.fill(value); }
  ~Perturbation() { place_.fill(before_); }
  Perturbation(const Perturbation&) = delete;
  Perturbation& operator=(const Perturbation&) = delete;

 private:
  Tensor place_;
  double before_;
};

}  // namespace

std::vector<Tensor> floating(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> result;
  for (const Tensor& output : outputs)
    if (output.defined() && is_floating(output.dtype())) result.push_back(output);
  return result;
}

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -significant_bits(dtype)); }

FiniteDifference::FiniteDifference(const TensorFunction& function, const std::vector<Tensor>& inputs,
                                   const std::vector<Tensor>& weights)
    : function_(function), point_(inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    bool shared = repeats_a_place(inputs[i]);
    for (const Tensor& other : inputs) shared |= !other.is_same(inputs[i]) && share_elements(inputs[i], other);
    if (!shared) continue;
    const auto first =
        std::find_if(inputs.begin(), inputs.end(), [&](const Tensor& x) { return x.is_same(inputs[i]); });
    const auto position = static_cast<std::size_t>(first - inputs.begin());
    point_[i] = position < i ? point_[position] : copy_with_strides(inputs[i].detach()).set_requires_grad();
  }
  for (const Tensor& weight : weights) {
    append(weights_, weight);
    roundoff_.resize(weights_.size(), unit_roundoff(weight.dtype()));
  }
}

FiniteDifference::Sample FiniteDifference::at(std::size_t input, std::int64_t index, double value) {
  NoGradGuard guard;
  const Tensor place = element(point_[input], index);
  const Perturbation perturbation(place, value);
  Sample sample{place.item(), {}};
  for (const Tensor& output : floating(function_(point_))) append(sample.outputs, output);
  if (sample.outputs.size() != weights_.size())
    throw ValueError(fmt::format("[gradcheck] the function gave {} numbers at first and {} at a point nearby",
                                 weights_.size(), sample.outputs.size()));
  return sample;
}

double FiniteDifference::rise(const Sample& high, const Sample& low) const {
  double sum = 0.0;
  for (std::size_t i = 0; i < weights_.size(); ++i) sum += weights_[i] * (high.outputs[i] - low.outputs[i]);
  return sum;
}

double FiniteDifference::slope(const Sample& high, const Sample& low) const {
  return rise(high, low) / (high.x - low.x);
}

FiniteDifference::Derivative FiniteDifference::central(std::size_t input, std::int64_t index, double epsilon,
                                                       const std::vector<bool>& depends) {
  const double x = element(point_[input], index).item();
  const Sample high = at(input, index, x + step(x, epsilon)), low = at(input, index, x - step(x, epsilon));
  double rounding = 0.0, hidden = 0.0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const double one = std::abs(weights_[i]) * roundings(roundoff_[i]) * roundoff_[i] *
                       (std::abs(high.outputs[i]) + std::abs(low.outputs[i]));
    hidden += one;
    if (high.outputs[i] != low.outputs[i] || (i < depends.size() && depends[i])) rounding += one;
  }
  const double distance = high.x - low.x;
  return {rise(high, low) / distance, rounding / distance, hidden / distance, distance};
}

void FiniteDifference::visit_both_sides(std::size_t input, std::int64_t index, double epsilon,
                                        const std::function<void(const std::vector<Tensor>&)>& visit) {
  const NoGradGuard guard;
  const Tensor place = element(point_[input], index);
  const double x = place.item();
  for (const double there : {x + step(x, epsilon), x - step(x, epsilon)}) {
    const Perturbation perturbation(place, there);
    visit(point_);
  }
}

double FiniteDifference::narrowest_step(std::size_t input, std::int64_t index) const {
  const double x = std::abs(element(point_[input], index).item());
  return std::max(1e-16, std::ldexp(x, -42) / std::max(1.0, x));
}

std::pair<double, double> FiniteDifference::one_sided(std::size_t input, std::int64_t index, double epsilon) {
  const double x = element(point_[input], index).item();
  const Sample high = at(input, index, x + step(x, epsilon)), low = at(input, index, x - step(x, epsilon));
  const Sample here = at(input, index, x);
  return {slope(high, here), slope(here, low)};
}

double FiniteDifference::noise(std::size_t input, std::int64_t index, double epsilon) {
  constexpr std::size_t points = 9;
  constexpr std::array<double, 5> coefficients{1, -4, 6, -4, 1};
  constexpr std::size_t differences = points - coefficients.size() + 1;
  constexpr double variance = 1 + 16 + 36 + 16 + 1;  // of a difference of numbers of variance 1
  const double x = element(point_[input], index).item(), spacing = step(x, epsilon) / 4;
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < points; ++i)
    samples.push_back(at(input, index, x + (static_cast<double>(i) - points / 2) * spacing));
  // The points are rounded to the dtype. The slope times that rounding is not noise.
  const double slope = this->slope(samples.back(), samples.front());
  std::array<double, points> values;
  for (std::size_t i = 0; i < points; ++i)
    values[i] = rise(samples[i], samples[0]) - slope * (samples[i].x - samples[0].x - static_cast<double>(i) * spacing);
  double squares = 0.0;
  for (std::size_t i = 0; i < differences; ++i) {
    double difference = 0.0;
    for (std::size_t k = 0; k < coefficients.size(); ++k) difference += coefficients[k] * values[i + k];
    squares += difference * difference;
  }
  double of_outputs = 0.0;  // uniform over a unit in the last place
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const bool moves = samples.front().outputs[i] != samples.back().outputs[i];
    const double half_unit =
        moves ? weights_[i] * roundoff_[i] * std::exp2(std::ilogb(samples.front().outputs[i])) : 0.0;
    of_outputs += half_unit * half_unit / 3.0;
  }
  const double found = squares / (variance * static_cast<double>(differences));
  return found > 4.0 * of_outputs ? found - of_outputs : 0.0;
}

}  // namespace poolgrad
