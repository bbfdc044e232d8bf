// Convolutions and pooling over windows of one or two dimensions, as PyTorch's; a number in place of Dims stands for
// both dimensions. Floating dtypes. ShapeError where a window does not fit into the padded input, ValueError for a step
// below 1 or a negative padding.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

struct ConvOptions {
  Dims stride = 1, padding = 0, dilation = 1;  // padding on both sides, with zeros
  std::int64_t groups = 1;                     // channels that do not see each other
};

/// x (N, C, H, W), weight (O, C / groups, KH, KW) and optional bias (O) -> (N, O, OH, OW), with
/// OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1: cross-correlation. One matrix product over windows, which
/// are laid out in workspace for as many images as make 4 M elements, and again in the backward; none are kept.
Tensor conv2d(Argument x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});
/// x (N, C, L), weight (O, C / groups, K) and optional bias (O) -> (N, O, OL). Causal where x was padded in front by
/// dilation (K - 1), see pad().
Tensor conv1d(Argument x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

/// The largest (mean) element of each window of x (N, C, H, W), one every `stride` (none given: the size of the
/// window). The padding is -inf for max_pool, whose ties share the gradient equally, and zeros that count for avg_pool.
Tensor max_pool2d(Argument x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
Tensor avg_pool2d(Argument x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
/// The same of x (N, C, L).
Tensor max_pool1d(Argument x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
Tensor avg_pool1d(Argument x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);

}  // namespace poolgrad
