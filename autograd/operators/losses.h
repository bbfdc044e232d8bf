// Losses. Results are 0-dimensional, except with Reduction::none. Cross entropies, nll_loss and kl_div of f16 and bf16
// return f32. If targets were written since the forward pass, a backward that reads them throws Error; nll_loss and the
// losses of a - b keep copies. Operands never broadcast (ShapeError).
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

enum class Reduction { mean, sum, none };

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  // targets with this value are ignored
  double label_smoothing = 0.0;
  Reduction reduction = Reduction::mean;
  /// c of c tanh(logit / c), applied to the logits first; 0: off. Throws ValueError for another value outside
  /// [1e-30, 1e30], and in nll_loss() unless 0.
  double softcap = 0.0;
};

/// Returns the mean of logsumexp(logits) - logits[target], for logits (..., V) and i64 targets (...). The backward
/// recomputes probabilities from the saved lse, in the memory of the gradient. Without counted targets the mean is 0.
/// Throws IndexError with the first target outside [0, V) and its position.
Tensor cross_entropy(TensorArg logits, const Tensor& targets, CrossEntropyOptions options = {});
/// Returns cross_entropy(x weight^T, targets) for x (..., C) and weight (V, C), in chunks of rows. Only the logits of
/// one chunk exist at a time: at most 1024 rows, or 512 for half types, whose logits are f32.
/// With a softcap and gradients, a second tensor of this size.
/// The forward pass computes the gradients, tagged Category::gradient. The first backward takes them; a second one
/// (retain_graph) recomputes them. For f16 and bf16 the gradient of the weight is summed in f32. An f32 weight, cast
/// for the products, gets this sum directly; otherwise the sum takes additional memory of its size. Under autocast x
/// may be f32. Mean or sum only (ValueError).
Tensor linear_cross_entropy(TensorArg x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options = {});
/// Returns the cross entropy for the output of log_softmax: log_probabilities (..., V), i64 targets (...). Same options
/// and errors as cross_entropy().
Tensor nll_loss(TensorArg log_probabilities, const Tensor& targets, CrossEntropyOptions options = {});
/// Returns -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) for each logit x and its target t in [0, 1]. targets has
/// the shape and dtype of logits. Stable, and exact in the tails.
Tensor binary_cross_entropy_with_logits(TensorArg logits, const Tensor& targets, Reduction reduction = Reduction::mean);
/// Returns KL(p || q), the sum of p (log p - log q) over the last dimension, 0 where p is 0. log_q and p are (..., V)
/// with one dtype. The mean is over rows (batchmean in PyTorch).
Tensor kl_div(TensorArg log_q, const Tensor& p, Reduction reduction = Reduction::mean);
/// (a - b)^2 for each element.
Tensor mse_loss(TensorArg a, const Tensor& b, Reduction reduction = Reduction::mean);
/// |a - b| for each element; subgradient 0 at 0.
Tensor l1_loss(TensorArg a, const Tensor& b, Reduction reduction = Reduction::mean);
/// d^2 / 2 if |d| <= delta, else delta (|d| - delta / 2), for d = a - b (Huber 1964). Throws ValueError unless delta >
/// 0.
Tensor huber_loss(TensorArg a, const Tensor& b, double delta = 1.0, Reduction reduction = Reduction::mean);

}  // namespace poolgrad
