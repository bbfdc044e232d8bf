// The interface of a block of a language model, for blocks of one's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nn/module.h"

namespace poolgrad::nn {

struct LanguageModelConfig;

/// The operands of a block besides x, in one pass through a model.
struct BlockContext {
  Tensor tokens = {};               // (B, T) i64; undefined if no block of the model reads_embeddings()
  Tensor x0 = {};                   // (B, T, width), the input of the first block; undefined likewise
  std::vector<Tensor> passed = {};  // by earlier blocks, in order; a block may append tensors for later ones
  SequenceState* state = nullptr;   // of this block; nullptr: x is a whole sequence
};

/// A block of a language model: a function of x, of the first block's input, of the tokens and of its state. A block
/// owns its parameters as any Module does.
class Block : public Module {
 public:
  /// x (B, T, width) -> the same shape and dtype. A state is extended by T positions, as SequenceMixer::forward() does.
  /// With checkpoints a block runs again: its result depends on its operands and parameters alone.
  virtual Tensor forward(const Tensor& x, BlockContext& context) = 0;
  /// Returns whether forward() takes a state.
  virtual bool continues() const { return true; }
  /// Returns whether the output at a position depends on later ones. Language models refuse such a block.
  virtual bool looks_ahead() const { return false; }
  /// Returns whether forward() reads `tokens` or `x0` of the context, which then stay allocated.
  virtual bool reads_embeddings() const { return true; }
  /// Returns the SequenceMixer::weights() of the block for its input x alone; undefined without such weights.
  virtual Tensor mixing_weights(const Tensor& /*x*/) { return {}; }
  /// See SequenceMixer::set_part().
  virtual void set_part(const SequencePart& part);
};

/// Makes block `layer`, counted from 0.
using BlockFactory =
    std::function<std::unique_ptr<Block>(const LanguageModelConfig&, const ParameterOptions&, std::int64_t layer)>;

}  // namespace poolgrad::nn
