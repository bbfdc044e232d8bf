// A ring's call, made of what the user gave: the same on every rank.
#pragma once

#include <cstdint>

#include "attention/ring_pass.h"

namespace poolgrad::attention {

/// Throws what ring_attend() refuses whatever the layout; true where a gradient is wanted.
bool check_ring(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);

/// For whole sequences of `queries` and `keys`; takes a range of the generator where weights are dropped.
RingCall prepare_ring(const AttendOperands& x, const Pattern& pattern, int ranks, const RingOptions& options,
                      std::int64_t queries, std::int64_t keys);

}  // namespace poolgrad::attention
