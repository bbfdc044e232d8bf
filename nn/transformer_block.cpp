#include "nn/transformer_block.h"

#include "allocator/memory_scope.h"
#include "autograd/arithmetic.h"
#include "nn/layer_norm.h"
#include "nn/rms_norm.h"

namespace poolgrad::nn {

std::unique_ptr<Layer> make_norm(NormKind kind, std::int64_t width, bool bias, const ParameterOptions& parameters) {
  if (kind == NormKind::rms_norm) return std::make_unique<RMSNorm>(width, 1e-6, parameters);
  return std::make_unique<LayerNorm>(width, bias, 1e-5, parameters);
}

TransformerBlock::TransformerBlock(std::int64_t width, std::unique_ptr<SequenceMixer> mixer,
                                   std::unique_ptr<Layer> feed_forward, TransformerBlockOptions options,
                                   const ParameterOptions& parameters)
    : norm1_(make_norm(options.norm, width, options.bias, parameters)),
      mixer_(std::move(mixer)),
      norm2_(make_norm(options.norm, width, options.bias, parameters)),
      feed_forward_(std::move(feed_forward)),
      dropout_(options.dropout, *parameters.generator) {
  add_module("norm1", *norm1_);
  add_module("mixer", *mixer_);
  add_module("norm2", *norm2_);
  add_module("feed_forward", *feed_forward_);
  add_module("dropout", dropout_);
}

Tensor TransformerBlock::forward(const Tensor& x, SequenceState* state) {
  Tensor mixed;
  {
    const MemoryScope scope("mixer");
    mixed = x + dropout_(mixer_->forward((*norm1_)(x), state));
  }
  const MemoryScope scope("feed_forward");
  return mixed + dropout_((*feed_forward_)((*norm2_)(mixed)));
}

}  // namespace poolgrad::nn
