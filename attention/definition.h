// Attention as its definition says it, from primitive operators: O(Nq Nk) memory. Serves second derivatives and tests.
#pragma once

#include "attention/attend.h"

namespace poolgrad::attention {

/// What attend() computes, with every score in memory; differentiable any number of times. Inputs are not checked.
Attended attend_by_definition(const Tensor& q, const Tensor& k, const Tensor& v, const Pattern& pattern, double scale,
                              Alignment alignment);

}  // namespace poolgrad::attention
