// One pre-norm transformer block.
#pragma once

#include <cstdint>
#include <memory>

#include "nn/dropout.h"
#include "nn/feed_forward.h"
#include "nn/sequence_mixer.h"

namespace poolgrad::nn {

enum class NormKind { layer_norm, rms_norm };

/// LayerNorm (with bias where `bias`) or RMSNorm.
std::unique_ptr<Layer> make_norm(NormKind kind, std::int64_t width, bool bias, const ParameterOptions& parameters = {});

struct TransformerBlockOptions {
  NormKind norm = NormKind::rms_norm;
  bool bias = false;  // of the norms; the layers bring their own
  double dropout = 0.0;
};

/// h = x + dropout(mixer(norm1(x))), out = h + dropout(feed_forward(norm2(h))); x is (B, T, width).
class TransformerBlock : public Module {
 public:
  TransformerBlock(std::int64_t width, std::unique_ptr<SequenceMixer> mixer, std::unique_ptr<Layer> feed_forward,
                   TransformerBlockOptions options = {}, const ParameterOptions& parameters = {});

  Tensor forward(const Tensor& x, SequenceState* state = nullptr);

 private:
  std::unique_ptr<Layer> norm1_;
  std::unique_ptr<SequenceMixer> mixer_;
  std::unique_ptr<Layer> norm2_;
  std::unique_ptr<Layer> feed_forward_;
  Dropout dropout_;
};

}  // namespace poolgrad::nn
