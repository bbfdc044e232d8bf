#include "nn/gradient_clipping.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "kernels/reduce.h"
#include "tensor/creation.h"

namespace poolgrad::nn {

double gradient_norm(const std::vector<Tensor>& parameters) {
  if (parameters.empty()) return 0.0;
  const MemoryScope scope("gradient_norm", Category::workspace);
  const Device device = parameters.front().device();
  const Tensor sum = zeros({}, {.dtype = DType::f64, .device = device});
  for (const Tensor& parameter : parameters)
    if (const Tensor gradient = parameter.grad(); gradient.defined())
      kernels::add_sum_of_squares(current_stream(device), sum.view(), gradient.view());
  return std::sqrt(sum.item());
}

double clip_scale(double norm, double limit) {
  if (!(limit >= 0)) throw ValueError("[clip_scale] the limit must not be negative: " + std::to_string(limit));
  return limit == 0 || norm <= limit ? 1.0 : limit / norm;
}

}  // namespace poolgrad::nn
