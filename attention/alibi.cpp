#include <cmath>
#include <string>
#include <vector>

#include "allocator/error.h"
#include "attention/attend.h"
#include "autograd/operators/cast.h"
#include "tensor/creation.h"

namespace poolgrad::attention {

Tensor alibi_slopes(std::int64_t heads, const TensorOptions& options) {
  if (heads < 1) throw ValueError("[alibi_slopes] heads must be at least 1, but are " + std::to_string(heads));
  std::int64_t power = 1;  // the largest that is not above `heads`
  while (2 * power <= heads) power *= 2;
  const auto slope = [](std::int64_t h, std::int64_t of) {
    return std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(of));
  };
  // Heads beyond the power of two take every other slope of the next power.
  std::vector<double> slopes;
  for (std::int64_t h = 0; h < heads; ++h)
    slopes.push_back(h < power ? slope(h, power) : slope(2 * (h - power), 2 * power));
  return to(to(from_data(slopes, {heads}), options.dtype), options.device);
}

}  // namespace poolgrad::attention
