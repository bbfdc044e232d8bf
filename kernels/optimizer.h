// Optimizer updates in one pass over memory, many parameters per call (on a GPU per launch). Each parameter may have
// its own floating dtype. Gradients have the dtype of their parameter, states its compute dtype. All views are
// contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// One parameter. A rule reads and writes its first states() states, in the order of its comment.
struct UpdateOperands {
  View parameter, gradient;
  std::array<View, 3> state = {};
};

/// AdamW (Loshchilov & Hutter 2019), or Adam (Kingma & Ba 2015) with coupled decay. States: first moment, second
/// moment, and with amsgrad (Reddi et al. 2018) the largest second moment so far.
struct AdamW {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  std::int64_t step = 1;        // counts from 1, for the bias correction
  double gradient_scale = 1.0;  // multiplies the gradient first (clipping)
  /// Device memory of a recorded step (tensor/graph.h). Each replay fills it by write_recorded(); it then replaces all
  /// options above.
  const void* recorded = nullptr;
  /// Device memory that replaces `gradient_scale`. A NaN there skips the update.
  const double* device_scale = nullptr;
  bool coupled = false;  // the decay is added to the gradient (L2)
  bool amsgrad = false;

  static constexpr std::size_t fewest_states = 2, most_states = 3;
  std::size_t states() const { return amsgrad ? 3 : 2; }
};

/// PyTorch's SGD. State: the momentum buffer, unless momentum is 0.
struct Sgd {
  double learning_rate = 1e-2, momentum = 0.0, weight_decay = 0.0, dampening = 0.0;
  bool nesterov = false;
  bool first_step = false;  // sets the momentum buffer instead of blending it
  double gradient_scale = 1.0;
  const void* recorded = nullptr;  // as in AdamW
  const double* device_scale = nullptr;

  static constexpr std::size_t fewest_states = 0, most_states = 1;
  std::size_t states() const { return momentum == 0 ? 0 : 1; }
};

/// PyTorch's RMSprop (Tieleman & Hinton 2012; centered: Graves 2013). States: mean square, if centered the mean
/// gradient, and the momentum buffer, unless momentum is 0.
struct RmsProp {
  double learning_rate = 1e-2, alpha = 0.99, epsilon = 1e-8, weight_decay = 0.0, momentum = 0.0;
  bool centered = false;
  double gradient_scale = 1.0;
  const void* recorded = nullptr;  // as in AdamW
  const double* device_scale = nullptr;

  static constexpr std::size_t fewest_states = 1, most_states = 3;
  std::size_t states() const { return std::size_t{1} + (centered ? 1 : 0) + (momentum == 0 ? 0 : 1); }
};

/// Adds `gradient` to `parameter`, a running sum in a half type. The state is that sum in the compute dtype, so
/// rounding loses no addend. If an element of `parameter` differs from the rounded state, another writer changed it,
/// and the sum continues from that element.
struct AddGradient {
  bool first = false;  // the state holds nothing yet

  static constexpr std::size_t fewest_states = 1, most_states = 1;
  std::size_t states() const { return 1; }
};

// clang-format off
/// Every rule: its kernel and its options.
#define POOLGRAD_UPDATES(UPDATE) UPDATE(adamw, AdamW) UPDATE(sgd, Sgd) UPDATE(rmsprop, RmsProp) UPDATE(add_gradient, AddGradient)
#define POOLGRAD_UPDATE(name, Options) \
  void name(Stream stream, const Options& options, std::span<const UpdateOperands> all);
POOLGRAD_UPDATES(POOLGRAD_UPDATE)
#undef POOLGRAD_UPDATE
// clang-format on

/// A linear combination in a step, with a factor that may be on the device.
struct WeightedSum {
  double a = 1.0, b = 1.0;
  bool of_gradient = false;        // b is multiplied by *device_scale
  const void* recorded = nullptr;  // as in AdamW
  const double* device_scale = nullptr;
};
/// out = a * x + b * y with the bits of axpby(), or x if *device_scale is NaN.
void weighted_sum(Stream stream, const View& out, const WeightedSum& numbers, const View& x, const View& y);

/// Size of `recorded` in bytes, and the functions that fill it.
inline constexpr std::size_t recorded_bytes = 128;
void write_recorded(const AdamW& options, void* to);
void write_recorded(const Sgd& options, void* to);
void write_recorded(const RmsProp& options, void* to);
void write_recorded(const WeightedSum& numbers, void* to);

}  // namespace poolgrad::kernels
