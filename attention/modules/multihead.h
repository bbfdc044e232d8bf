// The multi-head shell: projections and norms around any attention core, alone or as the mixer of a language model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "attention/modules/block_selection.h"
#include "attention/modules/delta_mixer.h"
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
  /// Replaces `layer_norm` by RMSNorm of the queries and of the keys of every head (Dehghani et al. 2023).
  bool qk_norm = false;
  /// MAGNETO's gain: factor of the initial weights of the value and output projections, not of queries and keys.
  double gamma_init = 1.0;
  /// Rotary positions of queries and keys, applied after their norms. Keys count from 0; the last query has the
  /// position of the last key. On a rank with a part of every sequence, positions count in the whole. By default none.
  std::optional<RopeOptions> rope = std::nullopt;
  /// Projects queries alone: keys and values are those of an earlier layer, LayerOperands::shared.
  bool shared_keys = false;
  bool alibi = false;  // AttendOptions::alibi with alibi_slopes()
  bool sinks = false;  // AttendOptions::sinks, learned; they start at 0
  /// Of the output projection, before the gain; negative: 1 / sqrt(width). By default also 1 / sqrt(width), but 0 in
  /// as_mixer().
  std::optional<double> output_deviation = std::nullopt;
  /// As a SequenceMixer.
  bool causal = false;
};

/// Keys and values (B, N, kv_heads, head_dim) of a layer, earlier positions included.
struct KeysValues {
  Tensor k, v;
};

/// Operands of self-attention besides x, from other parts of a model.
struct LayerOperands {
  /// (B, N, kv_heads * head_dim), floating: added to the values of x, such as an embedding of the tokens. Undefined:
  /// none.
  Tensor value_embedding = {};
  /// With MultiheadOptions::shared_keys, the keys and values to attend to. Otherwise, unless null, an empty one that
  /// receives the layer's own, for later layers.
  KeysValues* shared = nullptr;
  /// AttendOptions::documents of the rows of x, without a state.
  RowDocuments documents = {};
};

/// (B, N, width) -> (B, N, width): packed projection to heads, norms, rotation, the core, post norm, output projection.
/// Casts parameters to the input's dtype if it differs. Without norms and rotation, queries, keys and values are views
/// of the packed projection.
class MultiheadShell : public nn::SequenceMixer {
 public:
  /// Throws ValueError if heads do not divide width or kv_heads do not divide heads, for sizes below 1, for an odd head
  /// width with rope, for both norms at once, and the errors of the core's check_heads().
  MultiheadShell(std::int64_t width, std::int64_t heads, std::unique_ptr<AttentionCore> core,
                 const MultiheadOptions& options = {}, const nn::ParameterOptions& parameters = {}, CallSite = {});

  /// Self-attention, causal if the options say so. With a state, keeps keys and values of earlier positions in it and
  /// attends to them; positions continue. If no query looks ahead, the output equals that of one call for the whole
  /// sequence. If the pattern depends on the length, it is that of a sequence as long as the state's `context`, and a
  /// longer one throws ValueError. Throws ValueError for a state if the core does not continue sequences. A call that
  /// throws leaves the positions of the state unchanged, but may leave its memory larger.
  ///
  /// In chunks (a state with `whole`), take_chunk() keeps the keys that are still visible. A pattern that looks ahead
  /// or depends on the content then throws ValueError.
  Tensor forward(const Tensor& x, nn::SequenceState* state = nullptr) override { return forward(x, state, {}); }
  /// The same with other operands. A layer with shared keys has no tensors in its state, and takes a state after the
  /// layer whose keys it shares. Throws ValueError for a value embedding of such a layer, without keys to share, and in
  /// chunks; ShapeError for operands that do not fit x.
  virtual Tensor forward(const Tensor& x, nn::SequenceState* state, const LayerOperands& operands);
  bool continues() const override { return core_->continues(); }
  bool looks_ahead() const override { return core_->looks_ahead(options_.causal); }
  /// Returns the weights, by attention over values that are unit vectors: value j is the unit vector j, of width T. A
  /// rank with a part of sequences returns its rows, (B, heads, its positions, T). Undefined with shared keys.
  Tensor weights(const Tensor& x) override;
  /// Rotary positions of queries and keys are those of the part, and the core gets the length of the whole. Positions
  /// allow no state (ValueError). Throws ValueError for positions if the core has no communicator.
  void set_part(const SequencePart& part) override;
  /// Attention of `query` (B, Nq, width) to `key` and `value` (B, Nk, width). Operands that are the same tensor are
  /// projected in one product. The call's slopes, sinks, whole and first_batch override those of the module and the
  /// part.
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

 protected:
  struct Projected {
    Tensor q, k, v;  // (B, N, heads, D)
  };
  /// Projects, norms and rotates queries and keys at these positions.
  Projected project(const Tensor& query, const Tensor& key, const Tensor& value, const kernels::PositionMap& queries,
                    const kernels::PositionMap& keys);
  /// Projects x at these positions, and completes it by `operands`.
  Projected project(const Tensor& x, const nn::SequenceState* state, const kernels::PositionMap& positions,
                    const LayerOperands& operands);
  /// Returns the attention (B, N, heads, width of the values) of the projections of x.
  virtual Tensor attend_heads(const Tensor& x, const Projected& projected, AttendOptions call);
  Tensor merge_heads(const Tensor& heads);

 private:
  std::vector<Tensor> project_heads(const Tensor& x, std::int64_t first, const std::vector<std::int64_t>& heads);
  /// Returns the positions of queries that end with the last key: those of the part, or the core's.
  kernels::PositionMap positions_of(const Tensor& x, const Tensor& keys) const;
  /// Returns the options of self-attention for this part.
  AttendOptions call_of_part() const;
  Tensor rotated(const Tensor& heads, const kernels::PositionMap& positions) const;

  std::unique_ptr<AttentionCore> core_;
  MultiheadOptions options_;
  std::int64_t heads_, head_dim_;
  nn::Linear projection_;
  std::unique_ptr<nn::Layer> q_norm_, k_norm_, post_norm_;
  nn::Linear output_;
  Tensor slopes_, sinks_;
  SequencePart part_;
};

/// A width with the line of its call, like TensorArg for a tensor: no parameter can follow a pack.
struct Width {
  Width(std::int64_t width, std::source_location line = std::source_location::current())  // NOLINT: made from it
      : value(width), site(line) {}

  std::int64_t value;
  CallSite site;
};

/// The shell around a core of a known class, constructed from the arguments after the shell's.
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

/// Attention by any pattern, or by a ring: (width, heads, options, parameters, pattern, ring, core options).
using MultiheadAttention = Multihead<PatternAttention>;

/// Returns `options` for a mixer of this model. The model determines positions (with base 10,000 unless `options` has
/// rope) and biases, and kv_heads unless `options` sets it. The output projection starts at 0 by default.
MultiheadOptions as_mixer(MultiheadOptions options, const nn::LanguageModelConfig& config);

/// The attention of one layer of a language model, or the module in its place.
struct MixerSpec {
  Pattern pattern = Pattern::causal();
  MultiheadOptions multihead = {.layer_norm = false, .post_norm = false};
  CoreOptions core = {};
  RingSetup ring = {};
  std::int64_t heads = 0;  // 0: the model's; otherwise multihead.kv_heads 0 means as many as these
  bool positions = true;   // false: no rotary positions, even if the model has them
  std::optional<DeltaMixerOptions> recurrent = {};  // a DeltaMixer, with these and `heads` alone
  std::optional<NativeSparseOptions> sparse = {};   // NativeSparseAttention: multihead, heads and positions alone
};

/// Returns a factory of MultiheadAttention mixers for a language model, with as_mixer(). `layers` has one entry for
/// each layer, or one for all. Only the pattern makes a layer causal. Without a generator in `core`, dropout uses the
/// parameters' generator, which must outlive the model. The factory throws ValueError for another number of entries
/// than layers, for a pattern with a length() below the context, for heads that MultiheadShell refuses, and for a
/// pattern, core options or a ring beside `sparse`.
nn::MixerFactory attention_mixer(std::vector<MixerSpec> layers);
/// The same attention in every layer.
nn::MixerFactory attention_mixer(const Pattern& pattern,
                                 const MultiheadOptions& options = {.layer_norm = false, .post_norm = false},
                                 const CoreOptions& core = {}, const RingSetup& ring = {});

/// Returns an nn::LanguageModel with attention_mixer(). Throws ValueError for a pattern that looks ahead, unless
/// config.looks_ahead, and for one with a length() below the context.
std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& parameters = {}, CallSite = {});
/// Loads a LlamaForCausalLM of a folder in Hugging Face's format (nn::read_pretrained_config()), in eval() mode.
/// `dtype` is LanguageModelConfig::dtype. Throws FileError before it allocates the model.
std::unique_ptr<nn::LanguageModel> load_language_model(const std::string& folder, DType dtype = DType::f32,
                                                       const nn::ParameterOptions& parameters = {}, CallSite = {});

}  // namespace poolgrad::attention
