// Optimiser updates in one pass over memory, many parameters in one call (and on a GPU in one launch). Parameters may
// be any floating dtype, each its own; gradients have the dtype of their parameter, moments the compute dtype. All
// views are contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

struct AdamW {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  std::int64_t step = 1;        // counted from 1, for the bias correction
  double gradient_scale = 1.0;  // multiplies the gradient first (clipping)
  /// Of a recorded step (tensor/graph.h): memory of the device that each replay fills by write_recorded(), and that is
  /// taken for all of the above.
  const void* recorded = nullptr;
  /// On the device, taken for `gradient_scale`. Where it is NaN, nothing is updated.
  const double* device_scale = nullptr;
};
struct AdamWOperands {
  View parameter, gradient, first_moment, second_moment;
};
/// Decoupled weight decay (Loshchilov & Hutter 2019).
void adamw(Stream stream, const AdamW& options, std::span<const AdamWOperands> all);

struct Sgd {
  double learning_rate = 1e-2, momentum = 0.0, weight_decay = 0.0, dampening = 0.0;
  bool nesterov = false;
  bool first_step = false;  // the momentum buffer is then set, not blended
  double gradient_scale = 1.0;
  const void* recorded = nullptr;  // as in AdamW
  const double* device_scale = nullptr;
};
/// `momentum` may have data == nullptr when options.momentum is 0.
struct SgdOperands {
  View parameter, gradient, momentum;
};
/// Update rule as PyTorch's SGD.
void sgd(Stream stream, const Sgd& options, std::span<const SgdOperands> all);

/// A part of a step that is put together from sums, where one of its numbers is on the device.
struct WeightedSum {
  double a = 1.0, b = 1.0;
  bool of_gradient = false;        // b is multiplied by *device_scale
  const void* recorded = nullptr;  // as in AdamW
  const double* device_scale = nullptr;
};
/// out = a * x + b * y to the bits of axpby(), or x where *device_scale is NaN.
void weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y);

/// Bytes of `recorded`, and what is to be there.
inline constexpr std::size_t recorded_bytes = 128;
void write_recorded(const AdamW& options, void* to);
void write_recorded(const Sgd& options, void* to);
void write_recorded(const WeightedSum& numbers, void* to);

}  // namespace poolgrad::kernels
