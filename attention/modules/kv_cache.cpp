#include "attention/modules/kv_cache.h"

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/engine/record.h"
#include "autograd/operators/check.h"
#include "autograd/operators/views.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

Tensor append_positions(Tensor& buffer, std::int64_t length, const Tensor& x) {
  constexpr int positions = 1;
  const MemoryScope scope("kv_cache", Category::cache);
  if (length > 0) {
    check_alike("kv_cache", {{"buffer", buffer}, {"x", x}});
    Shape same = x.shape();
    if (same.rank() == 4) same[positions] = buffer.size(positions);
    if (x.rank() != 4 || same != buffer.shape() || buffer.size(positions) < length)
      fail<ShapeError>("kv_cache", "x does not continue the " + std::to_string(length) + " positions that are kept",
                       {{"buffer", buffer}, {"x", x}});
  } else {
    buffer = {};
  }
  if (wants_gradient({buffer, x})) {
    buffer = buffer.defined() ? cat({slice(buffer, positions, 0, length), x}, positions) : x;
    return buffer;
  }
  const NoGradGuard no_grad;
  const std::int64_t total = length + x.size(positions);
  if (!buffer.defined() || total > buffer.size(positions) || !buffer.is_sole_owner()) {
    Shape shape = x.shape();
    shape[positions] = buffer.defined() ? total + total / 2 : total;
    const Tensor larger = Tensor::empty(shape, x.options());
    if (length > 0) slice(larger, positions, 0, length).copy_from(slice(buffer, positions, 0, length));
    buffer = larger;
  }
  slice(buffer, positions, length, total).copy_from(x.detach());
  return slice(buffer, positions, 0, total);
}

}  // namespace poolgrad::attention
