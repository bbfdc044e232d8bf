// Losses: 0-dimensional results.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets equal to it count neither in the sum nor in the mean
  double label_smoothing = 0.0;
  Reduction reduction = Reduction::mean;
};

/// logits (..., V) and i64 targets (...): mean of log_sum_exp(logits) - logits[target]. The backward recomputes
/// probabilities from the saved lse straight into the gradient. IndexError for a target outside [0, V).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy(x weight^T, targets) for x (..., C), weight (V, C) in chunks of rows: neither logits nor probabilities
/// exist beyond one chunk. Gradients are computed in the forward pass while the chunk is hot. Mean or sum only.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            CrossEntropyOptions options = {});
/// mean((a - b)^2).
Tensor mse_loss(const Tensor& a, const Tensor& b);

}  // namespace poolgrad
