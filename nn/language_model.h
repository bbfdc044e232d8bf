// A decoder-only transformer over bytes (or any other small vocabulary), and its blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nn/block.h"
#include "nn/checkpoint_sequential.h"
#include "nn/layers.h"

namespace poolgrad::nn {

enum class NormKind { layer_norm, rms_norm };

struct TransformerBlockOptions {
  NormKind norm = NormKind::rms_norm;
  double norm_epsilon = 0.0;  // see LanguageModelConfig
  bool bias = false;          // of the norms; the layers bring their own
  double dropout = 0.0;
  /// Positions in one tile of norm2 and the feed-forward layer (checkpoint_tiled()); 0: all. Both must treat each
  /// position by itself.
  std::int64_t tile = 0;
};

/// A pre-norm block: h = x + dropout(mixer(norm1(x))), out = h + dropout(feed_forward(norm2(h))); x is (B, T, width).
class TransformerBlock : public Block {
 public:
  /// Throws ValueError for a null mixer or feed-forward layer.
  TransformerBlock(std::int64_t width, std::unique_ptr<SequenceMixer> mixer, std::unique_ptr<Layer> feed_forward,
                   TransformerBlockOptions options = {}, const ParameterOptions& parameters = {}, CallSite = {});

  Tensor forward(const Tensor& x, BlockContext& context) override { return forward(x, context.state); }
  Tensor forward(const Tensor& x, SequenceState* state = nullptr, CallSite = {});
  bool continues() const override { return mixer_->continues(); }
  bool looks_ahead() const override { return mixer_->looks_ahead(); }
  bool reads_embeddings() const override { return false; }
  Tensor mixing_weights(const Tensor& x) override;
  void set_part(const SequencePart& part) override;

 private:
  std::unique_ptr<Layer> norm1_;
  std::unique_ptr<SequenceMixer> mixer_;
  std::unique_ptr<Layer> norm2_;
  std::unique_ptr<Layer> feed_forward_;
  Dropout dropout_;
  std::int64_t tile_;
  SequencePart part_;
};

/// rope: the mixers rotate queries and keys. learned: a table of `context` vectors is added to the embedding.
enum class Positions { rope, learned };

struct LanguageModelConfig {
  std::int64_t vocabulary = 256;
  /// Positions in training, and the size of the table of learned positions.
  std::int64_t context = 4096;
  std::int64_t layers = 2;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;  // shared by groups of queries; 0: as many as heads
  FeedForwardKind feed_forward = FeedForwardKind::gelu;
  double feed_forward_multiplier = 4.0;  // hidden units per width; see hidden_units()
  std::int64_t hidden = 0;               // hidden units; 0: as many as the multiplier makes
  NormKind norm = NormKind::rms_norm;
  double norm_epsilon = 0.0;  // 0: 1e-6 for rms_norm, 1e-5 for layer_norm
  Positions positions = Positions::rope;
  bool tied_head = false;    // the output weight is the embedding
  bool biases = false;       // in linear layers and LayerNorm
  double dropout = 0.0;      // of embeddings and residual branches
  DType dtype = DType::f32;  // of activations; parameters are f64 for f64 and f32 otherwise
  std::int64_t tile = 0;     // positions that feed-forward layers take at a time; 0: all
  /// c of c tanh(logit / c), which bounds every logit (Gemma 2, 2024); 0: off.
  double logit_softcap = 0.0;
  /// Mixers may see later positions: an encoder. The loss then does not measure prediction.
  bool looks_ahead = false;

  /// Throws ValueError, one sentence: sizes below 1, width not divisible by heads, heads not a multiple of kv_heads, an
  /// odd head width with rope, a negative tile, a dtype that is not floating, a multiplier that is not positive, more
  /// than 2^40 hidden units, an epsilon that is negative or not finite, a softcap outside [1e-30, 1e30] that is not 0.
  void check() const;
  /// `hidden`, or multiplier * width, times 2/3 for SwiGLU (equal parameter count), rounded up to a multiple of 8.
  std::int64_t hidden_units() const;
  DType parameter_dtype() const { return compute_dtype(dtype); }
};

/// Makes the mixer of block `layer`, counted from 0.
using MixerFactory = std::function<std::unique_ptr<SequenceMixer>(const LanguageModelConfig&, const ParameterOptions&,
                                                                  std::int64_t layer)>;

/// Returns a factory of TransformerBlocks with these mixers, and with norms and feed-forward layers of the config.
/// Throws ValueError for an empty function.
BlockFactory transformer_blocks(MixerFactory mixer);

/// Embedding, blocks, final norm, head. Embeddings start with deviation 1 (tied: 1 / sqrt(width)), residual outputs and
/// an untied head at 0, other weights with 1 / sqrt(inputs). The dtype of the parameters is
/// config.parameter_dtype(); options.generator feeds dropout and must outlive the model.
class LanguageModel : public Module {
 public:
  /// Throws ValueError for a config that check() refuses, for a null block or mixer, and for one that looks ahead
  /// without config.looks_ahead.
  LanguageModel(const LanguageModelConfig& config, const BlockFactory& block, ParameterOptions options = {},
                CallSite = {});
  /// The same with transformer_blocks().
  LanguageModel(const LanguageModelConfig& config, const MixerFactory& mixer, ParameterOptions options = {},
                CallSite = {});

  /// The states of all blocks.
  using State = std::vector<SequenceState>;
  /// Whether the mixers of all blocks take a state.
  bool continues() const;
  /// Returns one empty SequenceState per block, for the model's context. `whole` is the length of a sequence that comes
  /// chunk by chunk; 0: no chunks.
  State new_state(std::int64_t whole = 0) const;

  /// tokens (B, T) i64 -> (B, T, width) after the final norm. T may exceed the context. With learned positions, throws
  /// ShapeError if the state's length plus T exceeds it. Throws ValueError for the state of a model with another number
  /// of blocks, and ShapeError for a block that returns another shape, dtype or device.
  Tensor hidden(const Tensor& tokens, State* state = nullptr, CallSite = {});
  /// hidden (..., width), some or all positions -> (..., vocabulary).
  Tensor logits_of(const Tensor& hidden, CallSite = {});
  /// tokens (B, T) -> (B, T, vocabulary).
  Tensor logits(const Tensor& tokens, State* state = nullptr, CallSite = {});
  /// Returns the mean (or sum) over all positions of -log p(target | tokens so far), in nats. targets is (B, T) i64.
  /// The logits are never all in memory.
  Tensor loss(const Tensor& tokens, const Tensor& targets, bool sum = false, State* state = nullptr, CallSite = {});

  /// tokens (B, T), targets (B, T) -> (B, T): -log p of every target in f32 (f64 for f64). Has no gradient. At most
  /// 1024 positions have logits in memory at once.
  Tensor losses(const Tensor& tokens, const Tensor& targets, State* state = nullptr, CallSite = {});
  /// tokens (B, T) -> the weights() of each block's mixer, (B, heads, T, T), undefined for a mixer without weights. Has
  /// no gradient.
  std::vector<Tensor> mixing_weights(const Tensor& tokens, CallSite = {});

  /// Casts the matrices of blocks and head to config().dtype, for inference, as each call would cast them again.
  /// Results have the same bits. Vectors and embeddings, which calls add before they round, keep their dtype. A later
  /// optimizer would update rounded weights.
  void cast_matrices(CallSite = {});
  /// Checkpoints embedding, blocks and final norm, each as a stage. Results have the same bits. With a state,
  /// everything is kept.
  void set_checkpointing(Checkpointing policy) { checkpointing_ = policy; }
  /// Later tokens are this part of a batch that several ranks share. Positions and dropout are as in the whole batch.
  /// {}: whole batches again. A backward pass needs the part of its forward pass. Throws ValueError for a part of the
  /// positions if a mixer needs whole sequences.
  void set_part(const SequencePart& part);

  /// Returns the config with kv_heads filled in.
  const LanguageModelConfig& config() const { return config_; }

 private:
  const Tensor& head_weight() const;
  /// Calls block i. `passed` begins with tokens and x0 if reads_embeddings_.
  Tensor run_block(std::size_t i, const Tensor& x, std::vector<Tensor>& passed, SequenceState* state);
  /// Returns the input of the first block for tokens that follow `seen` others.
  Tensor embed(const Tensor& tokens, std::int64_t seen, const SequencePart& part);

  LanguageModelConfig config_;
  Checkpointing checkpointing_;
  SequencePart part_;
  Embedding embedding_;
  std::optional<Embedding> positions_;
  Dropout dropout_;
  std::vector<std::unique_ptr<Block>> blocks_;
  bool reads_embeddings_ = false;  // some block does
  std::unique_ptr<Layer> norm_;
  std::optional<Linear> head_;
};

}  // namespace poolgrad::nn
