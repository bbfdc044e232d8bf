// Kernels over rows: the last dimension has stride 1, and all earlier dimensions count rows. Views are contiguous
// unless stated. Operands of one call share a floating dtype. Statistics (mean, rstd, lse) are in its compute dtype;
// losses of cross_entropy and their gradients may be, too. Parallel over rows.
#pragma once

#include <cstdint>

#include "allocator/stream.h"
#include "kernels/functors/rotary.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// softmax(x)_j = exp(x_j - lse). A row of -inf gives zeros, never NaN.
void softmax(Stream stream, const View& out, const View& x);
void softmax_backward(Stream stream, const View& dx, const View& grad, const View& out);
/// x_j - lse; a row of -inf gives -inf.
void log_softmax(Stream stream, const View& out, const View& x);
void log_softmax_backward(Stream stream, const View& dx, const View& grad, const View& out);
/// lse of each row; out has the row dimensions of x. A row of -inf, or an empty row, gives -inf.
void logsumexp(Stream stream, const View& out, const View& x);

/// LayerNorm (Ba et al. 2016): out = (x - mean) * rstd * weight + bias. weight and bias (C) may have data == nullptr.
/// mean and rstd have shape (rows).
void layer_norm(Stream stream, const View& out, const View& mean, const View& rstd, const View& x, const View& weight,
                const View& bias, double epsilon);
/// dweight and dbias may have data == nullptr. Both sum over rows in a fixed order.
void layer_norm_backward(Stream stream, const View& dx, const View& dweight, const View& dbias, const View& grad,
                         const View& x, const View& mean, const View& rstd, const View& weight);
/// RMSNorm (Zhang & Sennrich 2019): out = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon).
void rms_norm(Stream stream, const View& out, const View& rstd, const View& x, const View& weight, double epsilon);
void rms_norm_backward(Stream stream, const View& dx, const View& dweight, const View& grad, const View& x,
                       const View& rstd, const View& weight);

/// loss[row] = lse(logits[row]) - logits[row, target[row]]; the backward needs lse. A row with target `ignore` has loss
/// 0. Targets are i64. With label smoothing s: (1 - s) * nll + s * mean over classes of (lse - logit).
void cross_entropy(Stream stream, const View& loss, const View& lse, const View& logits, const View& targets,
                   std::int64_t ignore, double smoothing);
/// dlogits = grad[row] * (softmax(logits) - onehot(target)). dlogits may alias logits. grad has shape (rows), possibly
/// stride 0.
void cross_entropy_backward(Stream stream, const View& dlogits, const View& grad, const View& logits, const View& lse,
                            const View& targets, std::int64_t ignore, double smoothing);

/// Rotary embedding (Su et al. 2021) on the last dimension of x (B, T, H, D), D even, stride 1 in D, other strides
/// free. Pairs are (d, d + D/2); angle = positions.of(t) * frequencies.of(base^(-2 d / D), d). `inverse` rotates back
/// and computes the gradient: it applies the magnitude as well.
void rope(Stream stream, const View& out, const View& x, const RotaryPositions& positions,
          const RotaryFrequencies& frequencies, bool inverse);

/// Bias gradient: out[c] = sum over rows of x[row, c], in a fixed order.
void sum_rows(Stream stream, const View& out, const View& x);

}  // namespace poolgrad::kernels
