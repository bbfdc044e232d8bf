// Losses: 0-dimensional results (but for Reduction::none), in f32 for f16 and bf16 inputs of the cross entropies and
// their kin. A backward that reads targets again throws Error if they were written since the forward pass; nll_loss and
// the losses of a - b keep copies. Operands are never broadcast (ShapeError).
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
Tensor cross_entropy(Argument logits, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy(x weight^T, targets) for x (..., C), weight (V, C) in chunks of rows: neither logits nor probabilities
/// exist beyond one chunk of at most 1024 rows (512 of a half type, whose logits are f32). The forward pass computes
/// the gradients, tagged Category::gradient. The first backward takes them; a second one (retain_graph) computes them
/// again. For f16 and bf16 the gradient of the weight is summed in f32: an f32 weight, which is cast for the products,
/// gets this sum; else the sum takes room of its size. Under autocast x may be f32, too. Mean or sum only (ValueError).
Tensor linear_cross_entropy(Argument x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy of what log_softmax gave: log_probabilities (..., V), i64 targets (...). The same options and errors.
Tensor nll_loss(Argument log_probabilities, const Tensor& targets, CrossEntropyOptions options = {});
/// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) of each logit x and its target t in [0, 1], a tensor like logits;
/// stable, and exact in the tails.
Tensor binary_cross_entropy_with_logits(Argument logits, const Tensor& targets, Reduction reduction = Reduction::mean);
/// KL(p || q) = sum of p (log p - log q) over the last dimension, 0 where p is 0, for log_q (..., V) and p (..., V),
/// both of one dtype; the mean is over rows (PyTorch's batchmean).
Tensor kl_div(Argument log_q, const Tensor& p, Reduction reduction = Reduction::mean);
/// (a - b)^2 of each element.
Tensor mse_loss(Argument a, const Tensor& b, Reduction reduction = Reduction::mean);
/// |a - b| of each element; subgradient 0 at 0.
Tensor l1_loss(Argument a, const Tensor& b, Reduction reduction = Reduction::mean);
/// d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), for d = a - b (Huber 1964); delta > 0 (ValueError).
Tensor huber_loss(Argument a, const Tensor& b, double delta = 1.0, Reduction reduction = Reduction::mean);

}  // namespace poolgrad
