// The one multi-head shell: projections and norms around any attention core, alone or as the mixer of a language model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "attention/modules/pattern_attention.h"
#include "autograd/operators/rows.h"
#include "nn/language_model.h"
#include "nn/layers.h"

namespace poolgrad::attention {

struct MultiheadOptions {
  std::int64_t kv_heads = 0;  // groups of heads / kv_heads query heads share keys and values; 0: as many as heads
  bool bias = true;
  /// LayerNorm of the projected queries and keys, over the full width, before heads are split.
  bool layer_norm = true;
  /// LayerNorm between attention and output projection (MAGNETO, Wang et al. 2022), with parameters of its own.
  bool post_norm = true;
  double layer_norm_eps = 1e-5;  // of both; qk_norm has 1e-6
  /// In place of `layer_norm`: RMSNorm of the queries and of the keys of every head (Dehghani et al. 2023).
  bool qk_norm = false;
  /// MAGNETO's gain: factor of the initial weights of the value and output projections, not of queries and keys.
  double gamma_init = 1.0;
  /// Rotary positions on queries and keys, after their norms: keys count from 0, the last query sits at the last key.
  /// Of a rank that takes its part of every sequence, they count in the whole. None where absent.
  std::optional<RopeOptions> rope = std::nullopt;
  bool alibi = false;  // AttendOptions::alibi with alibi_slopes()
  bool sinks = false;  // AttendOptions::sinks, learned; they start at 0
  /// Of the output projection, before the gain; negative: 1 / sqrt(width). Where absent the same, but 0 in as_mixer().
  std::optional<double> output_deviation = std::nullopt;
  /// As a SequenceMixer.
  bool causal = false;
};

/// (B, N, width) -> (B, N, width): packed projection to heads, norms, rotation, the core, post norm, output projection.
/// Parameters are cast to the dtype of the input where it differs. Without norms and rotation, queries, keys and values
/// are views of the packed projection.
class MultiheadShell : public nn::SequenceMixer {
 public:
  /// Throws ValueError where width does not divide by heads or heads by kv_heads, where sizes are below 1, for an odd
  /// head width with rope, for both norms at once, and what the core's check_heads() refuses.
  MultiheadShell(std::int64_t width, std::int64_t heads, std::unique_ptr<AttentionCore> core,
                 const MultiheadOptions& options = {}, const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// Self-attention, causal as the options say. With a state, keys and values of earlier positions are kept there and
  /// attended to; positions go on counting. What comes out is what one call for the whole sequence gives, if nobody
  /// looks ahead; where the pattern follows from the length, for a sequence as long as the state's `context`, beyond
  /// which ValueError is thrown. A core that does not continue sequences takes no state (ValueError). A
  /// call that throws leaves the positions of the state as they were, and memory for more. In chunks (a state with
  /// `whole`), take_chunk() keeps what is still seen, and ValueError is thrown for a pattern that looks ahead or
  /// follows from the content.
  Tensor forward(const Tensor& x, nn::SequenceState* state = nullptr) override;
  bool continues() const override { return core_->continues(); }
  bool looks_ahead() const override { return core_->looks_ahead(options_.causal); }
  /// Attention of every position to its own unit vector: whatever the core does, what comes out are its weights. Takes
  /// T values of width T. A rank that takes its part of sequences has its rows of them, (B, heads, its positions, T).
  Tensor weights(const Tensor& x) override;
  /// Rotary positions are those of the part, of queries and of keys, and the core is told how long the whole is. With
  /// positions there is no state (ValueError). Throws ValueError for positions where the core has no communicator.
  void set_part(const SequencePart& part) override;
  /// Attention of `query` (B, Nq, width) to `key` and `value` (B, Nk, width). What is the very same tensor is projected
  /// in one product. The call's slopes, sinks, whole and first_batch win over the module's and the part's.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttendOptions& call = {},
                 CallSite = {});

  using nn::SequenceMixer::operator();
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const AttendOptions& call = {},
                    CallSite = {}) {
    return forward(query, key, value, call);
  }

  AttentionCore& core() { return *core_; }
  const AttentionCore& core() const { return *core_; }
  std::int64_t heads() const { return heads_; }

 private:
  struct Projected {
    Tensor q, k, v;  // (B, N, heads, D)
  };
  /// Normed and rotated, queries and keys at these positions.
  Projected project(const Tensor& query, const Tensor& key, const Tensor& value, const kernels::PositionMap& queries,
                    const kernels::PositionMap& keys);
  std::vector<Tensor> project_heads(const Tensor& x, std::int64_t first, const std::vector<std::int64_t>& heads);
  /// Of queries that end with the last key: those of the part, or what the core says.
  kernels::PositionMap positions_of(const Tensor& x, const Tensor& keys) const;
  /// Self-attention of this part.
  AttendOptions call_of_part() const;
  Tensor rotated(const Tensor& heads, const kernels::PositionMap& positions) const;
  Tensor attend_heads(const Projected& projected, AttendOptions call);
  Tensor merge_heads(const Tensor& heads);

  std::unique_ptr<AttentionCore> core_;
  MultiheadOptions options_;
  std::int64_t heads_, head_dim_;
  nn::Linear projection_;
  std::unique_ptr<nn::Layer> q_norm_, k_norm_, post_norm_;
  nn::Linear output_;
  Tensor slopes_, sinks_;
  SequencePart part_;
};

/// A width, and the line of the call that it is given in, as Argument has for a tensor: nothing can follow a pack.
struct Width {
  Width(std::int64_t width, std::source_location line = std::source_location::current())  // NOLINT: made from it
      : value(width), site(line) {}

  std::int64_t value;
  CallSite site;
};

/// The shell around a core of a known class, which is made of the arguments from `core_arguments` on.
template <class Core>
class Multihead : public MultiheadShell {
 public:
  template <class... Arguments>
  Multihead(const Width& width, std::int64_t heads, const MultiheadOptions& options,
            const nn::ParameterOptions& parameters, Arguments&&... core_arguments)
      : MultiheadShell(width.value, heads, std::make_unique<Core>(std::forward<Arguments>(core_arguments)...), options,
                       parameters) {}

  Core& core() { return static_cast<Core&>(MultiheadShell::core()); }
};

/// Around any pattern, or a ring of it: (width, heads, options, parameters, pattern, ring, core options).
using MultiheadAttention = Multihead<PatternAttention>;

/// `options` as a mixer of this model has them: positions (at base 10,000 where `options` has none), biases, and heads
/// that share keys where `options` has none are the model's. The output projection starts at 0 by default.
MultiheadOptions as_mixer(MultiheadOptions options, const nn::LanguageModelConfig& config);

/// The attention of one layer of a language model.
struct MixerSpec {
  Pattern pattern = Pattern::causal();
  MultiheadOptions multihead = {.layer_norm = false, .post_norm = false};
  CoreOptions core = {};
  RingSetup ring = {};
  std::int64_t heads = 0;  // 0: the model's; else multihead.kv_heads 0 means as many as these
  bool positions = true;   // false: none, although the model has rotary positions
};

/// MultiheadAttention as the mixers of a language model, as_mixer(). `layers` has one entry for each layer, or one for
/// all. The pattern alone says what is causal. Weights are dropped by the parameters' generator where `core` has none;
/// it must outlive the model. The factory throws ValueError for another number of entries than layers, for a pattern
/// whose length() is below the context, and for heads that MultiheadShell refuses.
nn::MixerFactory attention_mixer(std::vector<MixerSpec> layers);
/// The same attention in every layer.
nn::MixerFactory attention_mixer(const Pattern& pattern,
                                 const MultiheadOptions& options = {.layer_norm = false, .post_norm = false},
                                 const CoreOptions& core = {}, const RingSetup& ring = {});

/// nn::LanguageModel with attention_mixer(): ValueError for a pattern that looks ahead, unless config.looks_ahead, and
/// for one whose length() is below the context.
std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& parameters = {}, CallSite = {});

}  // namespace poolgrad::attention
