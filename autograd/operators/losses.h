// Losses: 0-dimensional results (but for Reduction::none), in f32 for f16 and bf16 inputs of the cross entropies. Their
// backward reads the targets again: targets written since the forward pass throw Error.
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
/// probabilities from the saved lse straight into the gradient. The mean over no counted target is 0. IndexError names
/// the first target outside [0, V) and its position.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {}, CallSite = {});
/// cross_entropy(x weight^T, targets) for x (..., C), weight (V, C) in chunks of rows: neither logits nor probabilities
/// exist beyond one chunk of at most 1024 rows. Gradients are computed in the forward pass while the chunk is hot,
/// tagged Category::gradient, and given away by the first backward; a second one (retain_graph) computes them again.
/// For f16 and bf16 the weight's is added up in f32: where the weight is f32, which is then cast for the products, that
/// is its gradient, else in room of its size. Under autocast x may be f32, too. Mean or sum only (ValueError).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            CrossEntropyOptions options = {}, CallSite = {});
/// mean((a - b)^2); equal shapes, never broadcast (ShapeError).
Tensor mse_loss(const Tensor& a, const Tensor& b, CallSite = {});

}  // namespace poolgrad
