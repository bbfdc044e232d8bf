#include "nn/gradient_scale.h"

#include <fmt/format.h>

#include <algorithm>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/arithmetic.h"
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

double clip_scale(double norm, double limit) {
  check_limit(limit);
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
