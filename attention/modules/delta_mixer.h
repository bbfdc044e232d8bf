// The gated delta rule and gated linear attention as the mixer of a layer: a state of constant size in place of keys.
#pragma once

#include <cstdint>

#include "nn/layers.h"

namespace poolgrad::attention {

struct DeltaMixerOptions {
  bool delta = true;              // false: gated linear attention
  std::int64_t chunk = 64;        // DeltaRuleOptions::chunk
  std::int64_t convolution = 4;   // taps of the short convolution of queries, keys and values
  bool bias = false;              // of the projections
  double output_deviation = 0.0;  // of the output projection; negative: 1 / sqrt(width)
};

/// (B, T, width) -> (B, T, width), as Gated DeltaNet (Yang et al. 2025) without its output gate: one packed projection
/// to queries, keys and values, short_convolution() and silu, queries and keys of length 1, gated_delta_rule(), RMSNorm
/// of each head, output projection. beta is a sigmoid of the input and the decay e^-softplus of it, a number for each
/// head. Initial decays differ by head: half-lives are about 1 to 350 positions. No positions are needed.
class DeltaMixer : public nn::SequenceMixer {
 public:
  /// Throws ValueError if heads do not divide width, and for sizes below 1.
  DeltaMixer(std::int64_t width, std::int64_t heads, const DeltaMixerOptions& options = {},
             const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// A state holds the last inputs of the convolution, (B, taps - 1, 3 width), and the states (B, heads, D, D) in the
  /// compute dtype, whatever its length. Chunks of a sequence give the output of one call, up to rounding.
  Tensor forward(const Tensor& x, nn::SequenceState* state = nullptr) override;

 private:
  DeltaMixerOptions options_;
  std::int64_t heads_, head_dim_;
  nn::Linear projection_, gates_;
  Tensor convolution_, decay_bias_;
  nn::RMSNorm norm_;
  nn::Linear output_;
};

}  // namespace poolgrad::attention
