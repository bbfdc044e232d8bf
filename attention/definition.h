// Attention as its definition says it, from primitive operators: O(Nq Nk) memory. Serves second derivatives and tests.
#pragma once

#include "attention/attend.h"

namespace poolgrad::attention {

/// What attend() computes, with every score in memory; differentiable any number of times. Drops the same weights as
/// attend() does with a generator in the same state; the two options about memory are ignored. Throws like attend().
Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Pattern& pattern = Pattern::dense(), const AttendOptions& options = {});

}  // namespace poolgrad::attention
