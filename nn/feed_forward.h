// The position-wise feed-forward layer of a transformer.
#pragma once

#include <cstdint>
#include <optional>

#include "nn/linear.h"

namespace poolgrad::nn {

/// gelu: down(gelu(up x)), gelu_exact by erf, gelu by its tanh approximation (Hendrycks & Gimpel 2016).
/// swiglu: down(silu(gate x) * up x) (Shazeer 2020).
enum class FeedForwardKind { gelu, gelu_exact, swiglu };

struct FeedForwardOptions {
  FeedForwardKind kind = FeedForwardKind::gelu;
  bool bias = true;
  /// Deviation of the initial `down` weight; negative means 1 / sqrt(hidden). 0 starts the block as the identity.
  double down_deviation = -1.0;
};

/// (..., width) -> (..., width) through `hidden` units.
class FeedForward : public Layer {
 public:
  FeedForward(std::int64_t width, std::int64_t hidden, FeedForwardOptions options = {},
              const ParameterOptions& parameters = {});

  Tensor forward(const Tensor& x) override;

 private:
  FeedForwardKind kind_;
  Linear up_;
  std::optional<Linear> gate_;
  Linear down_;
};

}  // namespace poolgrad::nn
