#include "nn/gradient_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/arithmetic.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "nn/module.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

void check_limit(double limit) {
  if (!(limit >= 0)) throw ValueError(fmt::format("[clip_scale] must not be negative: limit {}", limit));
}

}  // namespace

GradientScale::GradientScale(const Tensor& of_device) {
  if (of_device.count() != 1) throw ShapeError("[gradient_scale] it must be one number: " + describe(of_device));
  if (of_device.dtype() != DType::f64) throw DTypeError("[gradient_scale] it must be f64: " + describe(of_device));
  copies_.push_back(of_device.detach());
}

const double* GradientScale::on(Device device) const {
  if (copies_.empty()) return nullptr;
  auto there = std::ranges::find(copies_, device, &Tensor::device);
  if (there == copies_.end()) {
    Tensor copy = Tensor::empty({}, {.dtype = DType::f64, .device = device}).copy_from(copies_.front());
    there = copies_.insert(there, std::move(copy));
  }
  return there->view().as<const double>();
}

Tensor gradient_norm_tensor(const std::vector<Tensor>& parameters, CallSite) {
  const MemoryScope scope("gradient_norm", Category::workspace);
  const auto zero_on = [](Device device) { return zeros({}, {.dtype = DType::f64, .device = device}); };
  const Tensor total = zero_on(device_of(parameters));
  const Stream stream = current_stream(total.device());
  std::vector<std::pair<Device, std::vector<View>>> by_device;
  std::vector<Tensor> gradients;  // hold the memory of the views
  for (const Tensor& parameter : parameters) {
    Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const Device device = gradient.device();
    auto alike = std::ranges::find(by_device, device, &std::pair<Device, std::vector<View>>::first);
    if (alike == by_device.end()) alike = by_device.insert(alike, {device, {}});
    alike->second.push_back(gradient.view());
    gradients.push_back(std::move(gradient));
  }
  for (const auto& [device, views] : by_device) {
    const Tensor sum = device == total.device() ? total : zero_on(device);
    kernels::add_sums_of_squares(current_stream(device), sum.view(), views);
    if (device == total.device()) continue;
    const Tensor moved = Tensor::empty_like(total).copy_from(sum);
    kernels::axpby(stream, total.view(), 1.0, total.view(), 1.0, moved.view());
  }
  kernels::unary(stream, kernels::UnaryOp::sqrt, total.view(), total.view());
  return total;
}

double gradient_norm(const std::vector<Tensor>& parameters, CallSite) {
  return gradient_norm_tensor(parameters).item();
}

double clip_scale(double norm, double limit) {
  check_limit(limit);
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  return limit == 0 || norm <= limit ? 1.0 : limit / norm;
}

Tensor clip_scale(Argument norm, double limit) {
  check_limit(limit);
  const NoGradGuard no_grad;
  const MemoryScope scope("clip_scale", Category::workspace);
  const Tensor nothing = *norm - *norm;  // 0, or NaN
  return limit == 0 ? nothing + 1.0 : minimum(full({}, limit, norm->options()) / *norm, 1.0) + nothing;
}

}  // namespace poolgrad::nn
