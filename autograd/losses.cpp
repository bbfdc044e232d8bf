#include "autograd/losses.h"

#include "allocator/error.h"
#include "autograd/arithmetic.h"
#include "autograd/cast.h"
#include "autograd/check.h"
#include "autograd/class_targets.h"
#include "autograd/definition.h"
#include "autograd/indexing.h"
#include "autograd/record.h"
#include "autograd/reductions.h"
#include "autograd/rows.h"
#include "autograd/unary.h"
#include "kernels/rows.h"

namespace poolgrad {
namespace {

/// The loss of every row in primitive operators.
Tensor row_losses(const Tensor& logits, const ClassTargets& targets, const CrossEntropyOptions& options) {
  const Tensor picked = squeeze(gather(logits, -1, unsqueeze(targets.safe, -1)), -1);
  const double smoothing = options.label_smoothing;
  Tensor losses = log_sum_exp(logits) - picked * (1.0 - smoothing);
  if (smoothing != 0.0) losses = losses - mean(logits, {-1}) * smoothing;
  return masked_fill(losses, logical_not(targets.counted), 0.0);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options, CallSite) {
  const Operands operands = {{"logits", logits}, {"targets", targets}};
  check_devices("cross_entropy", operands);
  if (!is_floating(logits.dtype())) fail<DTypeError>("cross_entropy", "logits need a floating dtype", operands);
  if (logits.rank() == 0 || targets.shape() != row_shape(logits))
    fail<ShapeError>("cross_entropy", "needs logits (..., V) and targets (...)", operands);
  const ClassTargets wanted("cross_entropy", targets, logits.shape().back(), options, operands);

  const TensorOptions statistics{compute_dtype(logits.dtype()), logits.device()};
  Tensor losses = Tensor::empty(targets.shape(), statistics);
  const Tensor lse = Tensor::empty(targets.shape(), statistics);
  kernels::cross_entropy(current_stream(logits.device()), losses.view(), lse.view(), dense(logits).view(),
                         wanted.rows.view(), options.ignore_index, options.label_smoothing);
  if (wants_gradient({logits}))
    record("cross_entropy", {logits}, {losses},
           [logits = SavedTensor(logits), lse = SavedTensor(lse), rows = SavedTensor(wanted.rows),
            options](const BackwardCall& call) -> Gradients {
             const Tensor scores = logits.unpack(), classes = rows.unpack(), &grad = call.gradient();
             if (grad_enabled())
               return differentiable_gradients(
                   [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                     const ClassTargets again("cross_entropy", classes, scores.shape().back(), options,
                                              {{"logits", scores}, {"targets", classes}});
                     return {to(row_losses(in[0], again, options), grad.dtype())};
                   },
                   {scores}, {grad});
             Tensor dlogits = Tensor::empty_like(scores);
             kernels::cross_entropy_backward(current_stream(grad.device()), dlogits.view(), grad.view(),
                                             dense(scores).view(), lse.unpack().view(), classes.view(),
                                             options.ignore_index, options.label_smoothing);
             return {dlogits};
           });
  switch (options.reduction) {
    case Reduction::none: return losses;
    case Reduction::sum: return sum(losses);
    default: return sum(losses) * wanted.inverse_count(statistics.dtype);
  }
}

Tensor mse_loss(const Tensor& a, const Tensor& b, CallSite) {
  check_floating("mse_loss", {{"a", a}, {"b", b}});
  if (a.shape() != b.shape()) fail<ShapeError>("mse_loss", "shapes differ", {{"a", a}, {"b", b}});
  return mean(square(a - b));
}

}  // namespace poolgrad
