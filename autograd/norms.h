// Normalisation over the last dimension; statistics in f32 (f64 for f64).
#pragma once

#include "tensor/tensor.h"

namespace poolgrad {

/// (x - mean) / sqrt(var + epsilon) * weight + bias (Ba et al. 2016); weight and bias (C), each may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double epsilon = 1e-5,
                  CallSite = {});
/// x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019); weight (C) may be undefined.
Tensor rms_norm(const Tensor& x, const Tensor& weight = {}, double epsilon = 1e-6, CallSite = {});

}  // namespace poolgrad
