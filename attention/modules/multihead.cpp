#include "attention/modules/multihead.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/modules/heads.h"
#include "attention/modules/native_sparse.h"
#include "attention/modules/past_keys.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/rows.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "nn/training/checkpoint.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::attention {

namespace {

std::int64_t checked_head_dim(std::int64_t width, std::int64_t heads, const MultiheadOptions& options) {
  const auto refuse = [&](const std::string& reason) {
    throw ValueError(
        fmt::format("[multihead] {}: width {}, heads {}, kv_heads {}", reason, width, heads, options.kv_heads));
  };
  if (width < 1 || heads < 1 || options.kv_heads < 1) refuse("sizes must be at least 1");
  if (width % heads != 0) refuse("width is not divisible by heads");
  if (heads % options.kv_heads != 0) refuse("heads are not a multiple of kv_heads");
  if (options.rope && width / heads % 2 != 0) refuse("rotary positions need an even width per head");
  if (options.layer_norm && options.qk_norm) refuse("layer_norm and qk_norm exclude each other");
  return width / heads;
}

MultiheadOptions completed(MultiheadOptions options, std::int64_t heads) {
  if (options.kv_heads == 0) options.kv_heads = heads;
  return options;
}

/// weight[begin:] *= factor.
void scale_rows(const Tensor& weight, std::int64_t begin, double factor) {
  if (factor == 1.0 || begin >= weight.size(0)) return;
  const NoGradGuard no_grad;
  Tensor rows = slice(weight, 0, begin);
  rows.copy_from(rows * factor);
}

}  // namespace

MultiheadShell::MultiheadShell(std::int64_t width, std::int64_t heads, std::unique_ptr<AttentionCore> core,
                               const MultiheadOptions& options, const nn::ParameterOptions& parameters, CallSite)
    : core_(std::move(core)),
      options_(completed(options, heads)),
      heads_(heads),
      head_dim_(checked_head_dim(width, heads, options_)),
      projection_(width, (heads + (options.shared_keys ? 0 : 2 * options_.kv_heads)) * head_dim_,
                  {.bias = options.bias}, parameters),
      output_(width, width, {.bias = options.bias, .deviation = options.output_deviation.value_or(-1.0)}, parameters) {
  if (!core_) throw ValueError("[multihead] the attention core is null");
  core_->check_heads(heads);
  scale_rows(projection_.weight(), (heads + options_.kv_heads) * head_dim_, options.gamma_init);
  scale_rows(output_.weight(), 0, options.gamma_init);
  const auto named = [&](const char* name, std::unique_ptr<nn::Layer> norm) {
    add_module(name, *norm);
    return norm;
  };
  const auto layer_norm = [&](std::int64_t size) {
    return std::make_unique<nn::LayerNorm>(size, true, options.layer_norm_eps, parameters);
  };
  add_module("core", *core_);
  add_module("projection", projection_);
  if (options.layer_norm) {
    q_norm_ = named("q_norm", layer_norm(width));
    if (!options.shared_keys) k_norm_ = named("k_norm", layer_norm(options_.kv_heads * head_dim_));
  } else if (options.qk_norm) {
    q_norm_ = named("q_norm", std::make_unique<nn::RMSNorm>(head_dim_, 1e-6, parameters));
    if (!options.shared_keys) k_norm_ = named("k_norm", std::make_unique<nn::RMSNorm>(head_dim_, 1e-6, parameters));
  }
  if (options.post_norm) post_norm_ = named("post_norm", layer_norm(width));
  add_module("output", output_);
  if (options.sinks) sinks_ = constant_parameter("sinks", {heads}, 0.0, parameters);
  if (options.alibi) slopes_ = alibi_slopes(heads, {compute_dtype(parameters.dtype), parameters.device});
}

std::vector<Tensor> MultiheadShell::project_heads(const Tensor& x, std::int64_t first,
                                                  const std::vector<std::int64_t>& heads) {
  const std::int64_t count = std::accumulate(heads.begin(), heads.end(), std::int64_t{0});
  const std::int64_t begin = first * head_dim_, end = (first + count) * head_dim_;
  const auto part = [&](const Tensor& parameter) {
    const bool whole = !parameter.defined() || end - begin == parameter.size(0);
    return parameter_for("linear", whole ? parameter : slice(parameter, 0, begin, end), x);
  };
  const Tensor packed = linear(x, part(projection_.weight()), part(projection_.bias()));
  return split_heads(reshape(packed, {x.size(0), x.size(1), count, head_dim_}), heads);
}

Tensor MultiheadShell::rotated(const Tensor& heads, const kernels::PositionMap& positions) const {
  return options_.rope ? rope(heads, positions, *options_.rope) : heads;
}

MultiheadShell::Projected MultiheadShell::project(const Tensor& query, const Tensor& key, const Tensor& value,
                                                  const kernels::PositionMap& queries,
                                                  const kernels::PositionMap& keys) {
  const Operands operands{{"query", query}, {"key", key}, {"value", value}};
  check_floating("multihead", operands);
  for (const Tensor& x : {query, key, value})
    if (x.dim() != 3 || x.size(2) != heads_ * head_dim_)
      fail<ShapeError>("multihead", fmt::format("query, key and value must be (B, N, {})", heads_ * head_dim_),
                       operands);
  const MemoryScope scope("projection", Category::query);  // queries, keys and values in one block
  const std::int64_t kv_heads = options_.kv_heads;
  Projected result;
  const auto normed = [&](nn::Layer* norm, const Tensor& x) {
    if (!norm) return x;
    return options_.layer_norm ? reshape(norm->forward(flatten(x, 2, 3)), x.shape()) : norm->forward(x);
  };
  if (options_.shared_keys)
    return {rotated(normed(q_norm_.get(), project_heads(query, 0, {heads_})[0]), queries), {}, {}};
  if (query.is_same(key) && key.is_same(value)) {
    if (options_.rope && !q_norm_ && queries == keys) {  // rotates queries and keys at once, in one packed tensor
      const Tensor packed = project_heads(query, 0, {heads_ + 2 * kv_heads})[0];
      const Tensor turned = rope_first_heads(packed, heads_ + kv_heads, queries, *options_.rope);
      const auto parts = split_heads(turned, {heads_, kv_heads, kv_heads});
      return {parts[0], parts[1], parts[2]};
    }
    const auto parts = project_heads(query, 0, {heads_, kv_heads, kv_heads});
    result = {parts[0], parts[1], parts[2]};
  } else if (key.is_same(value)) {
    const auto parts = project_heads(key, heads_, {kv_heads, kv_heads});
    result = {project_heads(query, 0, {heads_})[0], parts[0], parts[1]};
  } else {
    result = {project_heads(query, 0, {heads_})[0], project_heads(key, heads_, {kv_heads})[0],
              project_heads(value, heads_ + kv_heads, {kv_heads})[0]};
  }
  result.q = rotated(normed(q_norm_.get(), result.q), queries);
  const MemoryScope scope_of_keys(Category::key);
  result.k = rotated(normed(k_norm_.get(), result.k), keys);
  return result;
}

MultiheadShell::Projected MultiheadShell::project(const Tensor& x, const nn::SequenceState* state,
                                                  const kernels::PositionMap& positions,
                                                  const LayerOperands& operands) {
  const auto& [embedding, shared, documents] = operands;
  if (state && !documents.empty())
    throw ValueError("[multihead] documents by row need whole sequences, without a state");
  if (options_.shared_keys) {
    if (!shared || !shared->k.defined() || !shared->v.defined())
      throw ValueError("[multihead] a layer with shared keys needs those of an earlier layer");
    if (embedding.defined())
      throw ValueError("[multihead] a layer with shared keys has no values to add an embedding to");
    if (state && state->whole > 0) throw ValueError("[multihead] a layer with shared keys cannot process chunks");
    const std::int64_t length = steps_of(x) + (state ? state->length : 0);
    if (shared->k.dim() != 4 || shared->k.size(1) != length)
      fail<ShapeError>("multihead", fmt::format("shared keys must be those of {} positions", length),
                       {{"x", x}, {"keys", shared->k}});
  }
  if (shared && !options_.shared_keys && (shared->k.defined() || shared->v.defined()))
    throw ValueError("[multihead] a layer with keys of its own takes no shared ones: set shared_keys");
  Projected result = project(x, x, x, positions, positions);
  if (options_.shared_keys) return {result.q, shared->k, shared->v};
  if (embedding.defined()) {
    check_floating("multihead", {{"value embedding", embedding}});
    const Shape wanted{x.size(0), x.size(1), options_.kv_heads * head_dim_};
    if (embedding.shape() != wanted)
      fail<ShapeError>("multihead", fmt::format("the value embedding must be {}", to_string(wanted)),
                       {{"x", x}, {"value embedding", embedding}});
    const MemoryScope scope("value_embedding", Category::value);
    result.v = result.v + reshape(to(embedding, result.v.dtype()), result.v.shape());
  }
  return result;
}

Tensor MultiheadShell::attend_heads(const Tensor&, const Projected& projected, AttendOptions call) {
  if (!call.alibi.defined()) call.alibi = slopes_;
  if (!call.sinks.defined()) call.sinks = sinks_;
  return core_->forward(projected.q, projected.k, projected.v, call);
}

Tensor MultiheadShell::merge_heads(const Tensor& heads) {
  const Tensor merged = flatten(heads, 2, 3);
  return output_.forward(post_norm_ ? post_norm_->forward(merged) : merged);
}

Tensor MultiheadShell::weights(const Tensor& x) {
  if (options_.shared_keys) return {};
  const kernels::PositionMap positions = positions_of(x, x);
  Projected projected = project(x, x, x, positions, positions);
  const AttendOptions call = call_of_part();
  const std::int64_t length = x.size(1), whole = core_->whole_length(length, call.whole);
  std::vector<double> units(static_cast<std::size_t>(length * whole));
  for (std::int64_t i = 0; i < length; ++i) units[static_cast<std::size_t>(i * whole + positions.position(i))] = 1;
  const Tensor of_positions = to(from_data(units, {1, length, 1, whole}, x.device()), projected.v.dtype());
  projected.v = expand(of_positions, {x.size(0), length, options_.kv_heads, whole});
  return permute(attend_heads(x, projected, call), {0, 2, 1, 3});
}

void MultiheadShell::set_part(const SequencePart& part) {
  if (part.positions.count > 0 && !core_->divides_sequences())
    throw ValueError("[multihead] this attention has no communicator, so it needs whole sequences");
  part_ = part;
}

AttendOptions MultiheadShell::call_of_part() const {
  const std::int64_t whole = part_.positions.count > 0 ? part_.whole : 0;
  return {.causal = options_.causal, .whole = whole, .first_batch = part_.first_row};
}

kernels::PositionMap MultiheadShell::positions_of(const Tensor& x, const Tensor& keys) const {
  return part_.positions.count > 0 ? part_.positions : core_->positions(steps_of(x), steps_of(keys));
}

Tensor MultiheadShell::forward(const Tensor& x, nn::SequenceState* state, const LayerOperands& operands) {
  const bool divided = part_.positions.count > 0;
  if (divided && state) throw ValueError("[multihead] a part of a sequence cannot be processed in chunks");
  const std::int64_t position = state ? state->length : 0;
  const kernels::PositionMap positions =
      state ? kernels::PositionMap::contiguous(steps_of(x), position) : positions_of(x, x);
  Projected projected = project(x, state, positions, operands);
  nn::SequenceState chunk_seen;  // the state after the chunk, set once the chunk is done
  AttendOptions call = call_of_part();
  call.documents = operands.documents;
  const bool in_chunks = state && state->whole > 0;
  if (state) {
    call.key_positions.whole = in_chunks ? state->whole : state->context;
    const std::optional<Pattern> fixed = core_->fixed_pattern(call.key_positions.whole, options_.causal);
    if (in_chunks ? !fixed : !continues())
      throw ValueError(fmt::format("[multihead] this attention needs the whole sequence at once and cannot {}",
                                   in_chunks ? "process it in chunks" : "continue an earlier one"));
    if (!in_chunks) core_->check_continued(position + x.size(1), state->context);
    if (in_chunks) chunk_seen = *state;
    if (!options_.shared_keys) {
      // Later layers with other patterns may read shared keys, so none are dropped.
      const Pattern pattern = fixed && !operands.shared ? fixed->causally(options_.causal) : Pattern::causal();
      KeysInReach keys = in_chunks ? take_chunk(chunk_seen, projected.k, projected.v, pattern)
                                   : append_chunk(*state, projected.k, projected.v, pattern);
      projected.k = std::move(keys.k);
      projected.v = std::move(keys.v);
      call.key_positions = keys.positions;
    }
  }
  if (operands.shared && !options_.shared_keys) *operands.shared = {projected.k, projected.v};
  const Tensor result = merge_heads(attend_heads(x, projected, call));
  if (in_chunks)
    *state = std::move(chunk_seen);
  else if (state)
    state->length += x.size(1);  // appended positions count from here on
  return result;
}

Tensor MultiheadShell::forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttendOptions& call,
                               CallSite) {
  if (options_.shared_keys) throw ValueError("[multihead] a layer with shared keys attends to no other keys");
  AttendOptions own = call;
  if (own.whole == 0 && part_.positions.count > 0) own.whole = part_.whole;
  if (own.first_batch == 0) own.first_batch = part_.first_row;
  return merge_heads(
      attend_heads(query, project(query, key, value, positions_of(query, key), positions_of(key, key)), own));
}

MultiheadOptions as_mixer(MultiheadOptions options, const nn::LanguageModelConfig& config) {
  if (options.kv_heads == 0) options.kv_heads = config.kv_heads;
  options.bias = config.biases;
  options.output_deviation = options.output_deviation.value_or(0.0);
  if (config.positions == nn::Positions::rope)
    options.rope = options.rope.value_or(10000.0);
  else
    options.rope.reset();
  return options;
}

nn::MixerFactory attention_mixer(std::vector<MixerSpec> layers) {
  return [layers = std::move(layers)](const nn::LanguageModelConfig& config, const nn::ParameterOptions& parameters,
                                      std::int64_t layer) -> std::unique_ptr<nn::SequenceMixer> {
    if (layers.size() != 1 && std::ssize(layers) != config.layers)
      throw ValueError(fmt::format("[language_model] there are {} for {}", plural(std::ssize(layers), "mixer"),
                                   plural(config.layers, "layer")));
    MixerSpec spec = layers.size() == 1 ? layers.front() : layers[static_cast<std::size_t>(layer)];
    const std::int64_t heads = spec.heads > 0 ? spec.heads : config.heads;
    if (spec.recurrent) {
      spec.recurrent->bias = config.biases;
      return std::make_unique<DeltaMixer>(config.width, heads, *spec.recurrent, parameters);
    }
    if (spec.sparse && (!(spec.pattern == Pattern::causal()) || spec.core.scale || spec.core.softcap ||
                        spec.core.dropout != 0 || spec.ring.ring_size != 1))
      throw ValueError("[language_model] native sparse attention takes no pattern, scale, softcap, dropout and ring");
    if (spec.pattern.length() < config.context)
      throw ValueError(fmt::format("[language_model] the pattern is made for {} positions, and the context has {}: {}",
                                   spec.pattern.length(), config.context, spec.pattern.to_string()));
    if (!spec.core.generator) spec.core.generator = parameters.generator;
    if (spec.heads > 0 && spec.multihead.kv_heads == 0) spec.multihead.kv_heads = heads;
    MultiheadOptions options = as_mixer(spec.multihead, config);
    if (!spec.positions) options.rope.reset();
    if (spec.sparse)
      return std::make_unique<NativeSparseAttention>(config.width, heads, *spec.sparse, options, parameters);
    return std::make_unique<MultiheadAttention>(config.width, heads, options, parameters, spec.pattern, spec.ring,
                                                spec.core);
  };
}

nn::MixerFactory attention_mixer(const Pattern& pattern, const MultiheadOptions& options, const CoreOptions& core,
                                 const RingSetup& ring) {
  return attention_mixer({MixerSpec{.pattern = pattern, .multihead = options, .core = core, .ring = ring}});
}

std::unique_ptr<nn::LanguageModel> make_language_model(const nn::LanguageModelConfig& config, const Pattern& pattern,
                                                       const nn::ParameterOptions& parameters, CallSite) {
  return std::make_unique<nn::LanguageModel>(config, attention_mixer(pattern), parameters);
}

std::unique_ptr<nn::LanguageModel> load_language_model(const std::string& folder, DType dtype,
                                                       const nn::ParameterOptions& parameters, CallSite) {
  nn::PretrainedConfig config = nn::read_pretrained_config(folder);
  config.model.dtype = dtype;
  const MultiheadOptions options{.layer_norm = false, .post_norm = false, .rope = config.rope};
  const auto make = [&](const nn::ParameterOptions& of_model) {
    return std::make_unique<nn::LanguageModel>(config.model, attention_mixer(Pattern::causal(), options), of_model);
  };
  nn::check_weights(folder, config.model, make);
  auto model = make(parameters);
  nn::import_weights(folder, config.rules, *model, true);
  model->eval();
  return model;
}

}  // namespace poolgrad::attention
