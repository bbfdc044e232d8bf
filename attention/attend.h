// Exact attention, fused: one operation for every pattern.
#pragma once

#include <optional>

#include "attention/pattern.h"
#include "tensor/tensor.h"

namespace poolgrad::attention {

struct AttendOptions {
  /// Factor of the scores; 1 / sqrt(D) where absent.
  std::optional<double> scale;
  Alignment alignment = Alignment::bottom_right;
};

/// out (B, Nq, Hq, Dv) in the dtype of the inputs; lse (B, Hq, Nq) in the compute dtype.
struct Attended {
  Tensor out, lse;
};

/// s = scale <q_i, k_j>, lse_i = log sum_j m(i, j) e^s, out_i = sum_j m(i, j) e^(s - lse_i) v_j for q (B, Nq, Hq, D),
/// k (B, Nk, Hkv, D), v (B, Nk, Hkv, Dv), Hq a multiple of Hkv (query head h uses key head h / (Hq / Hkv)). A query
/// that sees no key gives out 0, lse -infinity and zero gradients. Both results are differentiable, twice as well; only
/// the second derivative needs O(Nq Nk) memory. Any strides with stride 1 in the last dimension are used without a
/// copy, so q, k and v may be slices of one packed projection. Throws ShapeError, DTypeError (not floating, or mixed),
/// DeviceError.
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern = Pattern::dense(),
                const AttendOptions& options = {});

}  // namespace poolgrad::attention
