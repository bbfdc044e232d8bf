// A ring's call, made of what the user gave: the same on every rank.
#pragma once

#include <cstdint>

#include "attention/ring/pass.h"

namespace poolgrad::attention {

/// Throws what ring_attend() refuses whatever the layout, for a whole sequence of `keys`; true where a gradient is
/// wanted.
bool check_ring(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t keys, const AttendOptions& options);

/// This rank's operands: as prepare_operands(), but for the key padding, which is the ring's.
AttendOperands ring_operands(const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions& options);

/// For whole sequences of `queries` and `keys`; takes a range of the generator where weights are dropped.
RingCall prepare_ring(const AttendOperands& x, const Pattern& pattern, int ranks, const RingOptions& options,
                      std::int64_t queries, std::int64_t keys);

}  // namespace poolgrad::attention
