// Clipping by the global norm (Pascanu et al. 2013), without a pass of its own over the gradients.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace poolgrad::nn {

/// sqrt of the sum of squares of all gradients, accumulated in f64; parameters without one count as 0. 0 on sim.
double gradient_norm(const std::vector<Tensor>& parameters);
/// What Optimizer::step() should multiply gradients by so that their norm is at most `limit`: min(1, limit / norm).
/// A limit of 0 means no clipping. Throws ValueError for a negative limit.
double clip_scale(double norm, double limit);

}  // namespace poolgrad::nn
