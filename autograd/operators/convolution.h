// Convolutions and pooling in one or two dimensions, as in PyTorch. A number in place of Dims applies to both
// dimensions. Floating dtypes. Throw ShapeError if a window does not fit into the padded input, and ValueError for a
// stride below 1 or a negative padding.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace poolgrad {

struct ConvOptions {
  Dims stride = 1, padding = 0, dilation = 1;  // zero padding on both sides
  std::int64_t groups = 1;                     // independent groups of channels
};

/// Cross-correlation of x (N, C, H, W) with weight (O, C / groups, KH, KW) and optional bias (O) -> (N, O, OH, OW),
/// with OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1. Uses one matrix product over windows. Workspace
/// holds the windows of as many images as make 4 M elements; the backward lays them out again.
Tensor conv2d(TensorArg x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});
/// x (N, C, L), weight (O, C / groups, K) and optional bias (O) -> (N, O, OL). The convolution is causal if x was
/// padded in front by dilation (K - 1), see pad().
Tensor conv1d(TensorArg x, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {});

/// Return the largest (or mean) element of each window of x (N, C, H, W). Windows start every `stride` elements, by
/// default the window size. max_pool pads with -inf; ties share the gradient equally. avg_pool pads with zeros, which
/// count in the mean.
Tensor max_pool2d(TensorArg x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
Tensor avg_pool2d(TensorArg x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
/// The same for x (N, C, L).
Tensor max_pool1d(TensorArg x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);
Tensor avg_pool1d(TensorArg x, const Dims& size, const Dims& stride = {}, const Dims& padding = 0);

}  // namespace poolgrad
