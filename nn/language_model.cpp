#include "nn/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "allocator/base/number.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/memory/checkpoint_tiled.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/losses.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t most_logits = 1024;  // positions, as in linear_cross_entropy()
constexpr double most_units = 0x1p40;       // of a feed-forward layer

ParameterOptions with_dtype(ParameterOptions options, DType dtype) {
  options.dtype = dtype;
  return options;
}

double embedding_deviation(const LanguageModelConfig& config) {
  return config.tied_head ? 1.0 / std::sqrt(static_cast<double>(config.width)) : 1.0;
}

LanguageModelConfig completed(LanguageModelConfig config) {
  config.check();
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  return config;
}

double units_of(const LanguageModelConfig& config) {
  const double share = config.feed_forward == FeedForwardKind::swiglu ? 2.0 / 3.0 : 1.0;
  return config.feed_forward_multiplier * static_cast<double>(config.width) * share;
}

template <class Part>
std::unique_ptr<Part> given(std::unique_ptr<Part> part, const std::string& name) {
  if (!part) throw ValueError("[transformer_block] there is no " + name);
  return part;
}

/// Returns the part after the positions of a state, with the rows that are here.
SequencePart next_part(const SequenceState* state, const SequencePart& here) {
  if (!state) return here;
  return {.begin = state->length, .whole = state->whole, .first_row = here.first_row, .rows = here.rows};
}

std::unique_ptr<Layer> make_norm(NormKind kind, double epsilon, std::int64_t width, bool bias,
                                 const ParameterOptions& parameters) {
  if (kind == NormKind::rms_norm) return std::make_unique<RMSNorm>(width, epsilon > 0 ? epsilon : 1e-6, parameters);
  return std::make_unique<LayerNorm>(width, bias, epsilon > 0 ? epsilon : 1e-5, parameters);
}

}  // namespace

TransformerBlock::TransformerBlock(std::int64_t width, std::unique_ptr<SequenceMixer> mixer,
                                   std::unique_ptr<Layer> feed_forward, TransformerBlockOptions options,
                                   const ParameterOptions& parameters, CallSite)
    : norm1_(make_norm(options.norm, options.norm_epsilon, width, options.bias, parameters)),
      mixer_(given(std::move(mixer), "mixer")),
      norm2_(make_norm(options.norm, options.norm_epsilon, width, options.bias, parameters)),
      feed_forward_(given(std::move(feed_forward), "feed-forward layer")),
      dropout_(options.dropout, parameters.numbers()),
      tile_(options.tile) {
  add_module("norm1", *norm1_);
  add_module("mixer", *mixer_);
  add_module("norm2", *norm2_);
  add_module("feed_forward", *feed_forward_);
  add_module("dropout", dropout_);
}

Tensor TransformerBlock::forward(const Tensor& x, SequenceState* state, CallSite) {
  const SequencePart part = next_part(state, part_);
  Tensor mixed;
  {
    const MemoryScope scope("mixer");
    mixed = x + dropout_.forward(mixer_->forward((*norm1_)(x), state), part);
  }
  const MemoryScope scope("feed_forward");
  const auto feed = [this](const Tensor& positions) { return (*feed_forward_)((*norm2_)(positions)); };
  return mixed + dropout_.forward(tile_ > 0 ? checkpoint_tiled(feed, mixed, 1, tile_) : feed(mixed), part);
}

void TransformerBlock::set_part(const SequencePart& part) {
  mixer_->set_part(part);
  part_ = part;
}

Tensor TransformerBlock::mixing_weights(const Tensor& x) { return mixer_->weights((*norm1_)(x)); }

void Block::set_part(const SequencePart& part) {
  if (part.positions.count > 0)
    throw ValueError("[block] this block needs whole sequences, but gets a part of their positions");
}

void LanguageModelConfig::check() const {
  const auto fail = [](const std::string& reason) { throw ValueError("[language_model] " + reason); };
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"vocabulary", vocabulary}, {"context", context}, {"layers", layers}, {"width", width}, {"heads", heads}};
  for (const auto& [name, size] : sizes)
    if (size < 1) fail(std::string(name) + " must be at least 1, but is " + std::to_string(size));
  if (width % heads != 0)
    fail("width " + std::to_string(width) + " is not divisible by " + std::to_string(heads) + " heads");
  if (kv_heads < 0) fail("kv_heads must not be negative, but is " + std::to_string(kv_heads));
  if (kv_heads > 0 && heads % kv_heads != 0)
    fail(std::to_string(heads) + " heads are not a multiple of " + std::to_string(kv_heads) + " kv-heads");
  if (positions == Positions::rope && (width / heads) % 2 != 0)
    fail("rotary positions need an even width per head, but " + std::to_string(width) + " / " + std::to_string(heads) +
         " is odd");
  if (!is_floating(dtype)) fail("activations must be floating, but are " + std::string(to_string(dtype)));
  if (logit_softcap != 0 && !(logit_softcap >= 1e-30 && logit_softcap <= 1e30))
    fail(fmt::format("the softcap of logits must be 0 or from 1e-30 to 1e30, but is {}", logit_softcap));
  if (tile < 0) fail("a tile must not be negative, but has " + std::to_string(tile) + " positions");
  if (!(feed_forward_multiplier > 0)) fail("the feed-forward multiplier must be positive");
  if (hidden < 0) fail(fmt::format("hidden units must not be negative, but are {}", hidden));
  if (static_cast<double>(hidden) > most_units) fail(fmt::format("{} hidden units are more than 2^40", hidden));
  if (units_of(*this) > most_units)
    fail(fmt::format("the feed-forward multiplier {} makes more than 2^40 hidden units of width {}",
                     feed_forward_multiplier, width));
  if (!(norm_epsilon >= 0 && std::isfinite(norm_epsilon)))
    fail(fmt::format("the epsilon of norms must be a number from 0 on, but is {}", norm_epsilon));
}

std::int64_t LanguageModelConfig::hidden_units() const {
  return hidden > 0 ? hidden : static_cast<std::int64_t>(std::ceil(units_of(*this) / 8.0)) * 8;
}

BlockFactory transformer_blocks(MixerFactory mixer) {
  if (!mixer) throw ValueError("[language_model] the factory of mixers is empty");
  return [mixer = std::move(mixer)](const LanguageModelConfig& config, const ParameterOptions& options,
                                    std::int64_t layer) {
    auto feed_forward = std::make_unique<FeedForward>(
        config.width, config.hidden_units(),
        FeedForwardOptions{.kind = config.feed_forward, .bias = config.biases, .down_deviation = 0.0}, options);
    return std::make_unique<TransformerBlock>(config.width, mixer(config, options, layer), std::move(feed_forward),
                                              TransformerBlockOptions{.norm = config.norm,
                                                                      .norm_epsilon = config.norm_epsilon,
                                                                      .bias = config.biases,
                                                                      .dropout = config.dropout,
                                                                      .tile = config.tile},
                                              options);
  };
}

LanguageModel::LanguageModel(const LanguageModelConfig& config, const MixerFactory& mixer, ParameterOptions options,
                             CallSite)
    : LanguageModel(config, transformer_blocks(mixer), options) {}

LanguageModel::LanguageModel(const LanguageModelConfig& config, const BlockFactory& block, ParameterOptions options,
                             CallSite)
    : config_(completed(config)),
      embedding_(config.vocabulary, config.width, embedding_deviation(config),
                 options = with_dtype(options, config.parameter_dtype())),
      dropout_(config.dropout, options.numbers()) {
  if (!block) throw ValueError("[language_model] the factory of blocks is empty");
  add_module("embedding", embedding_);
  if (config.positions == Positions::learned)
    add_module("positions", positions_.emplace(config.context, config.width, embedding_deviation(config), options));
  add_module("dropout", dropout_);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    blocks_.push_back(block(config_, options, i));
    if (!blocks_.back()) throw ValueError("[language_model] there is no block " + std::to_string(i));
    reads_embeddings_ |= blocks_.back()->reads_embeddings();
    add_module("block" + std::to_string(i), *blocks_.back());
    if (blocks_.back()->looks_ahead() && !config.looks_ahead)
      throw ValueError("[language_model] block " + std::to_string(i) +
                       " looks ahead and sees the tokens to predict: make it causal (& Pattern::causal()), or set "
                       "looks_ahead to allow it");
  }
  norm_ = make_norm(config.norm, config.norm_epsilon, config.width, config.biases, options);
  add_module("norm", *norm_);
  if (!config.tied_head)
    add_module("head",
               head_.emplace(config.width, config.vocabulary, LinearOptions{.bias = false, .deviation = 0.0}, options));
}

bool LanguageModel::continues() const {
  return std::all_of(blocks_.begin(), blocks_.end(), [](const auto& block) { return block->continues(); });
}

LanguageModel::State LanguageModel::new_state(std::int64_t whole) const {
  SequenceState empty;
  empty.whole = whole;
  empty.context = config_.context;
  return State(blocks_.size(), empty);
}

const Tensor& LanguageModel::head_weight() const { return head_ ? head_->weight() : embedding_.weight(); }

Tensor LanguageModel::embed(const Tensor& tokens, std::int64_t seen, const SequencePart& part) {
  Tensor x = embedding_(tokens);
  if (positions_) {
    kernels::PositionMap map = part.map(tokens.size(1));
    if (part.positions.count == 0) map = kernels::PositionMap::contiguous(tokens.size(1), seen);
    std::vector<Tensor> pieces;
    for (const auto& piece : {map.piece(0), map.piece(1)})
      if (piece.count > 0)
        pieces.push_back(slice(positions_->weight(), 0, piece.position,
                               piece.position + (piece.count - 1) * map.stride + 1, map.stride));
    x = x + (pieces.size() == 1 ? pieces[0] : cat(pieces, 0));
  }
  return dropout_.forward(to(x, config_.dtype), part);
}

Tensor LanguageModel::hidden(const Tensor& tokens, State* state, CallSite) {
  if (state && state->size() != blocks_.size())
    throw ValueError("[language_model] the state has " + plural(std::ssize(*state), "block") + ", the model " +
                     std::to_string(blocks_.size()) + ": tokens " + describe(tokens));
  const std::int64_t seen = state ? state->front().length : 0;
  if (tokens.dim() != 2) throw ShapeError("[language_model] tokens must be (B, T): tokens " + describe(tokens));
  if (positions_ && seen + tokens.size(1) > config_.context)
    throw ShapeError(
        fmt::format("[language_model] there are {} learned positions, {} of them seen before, too few for tokens {}",
                    config_.context, seen, describe(tokens)));
  const MemoryScope scope("model", Category::activation);
  const SequencePart part = next_part(state ? state->data() : nullptr, part_);
  using Passed = std::vector<Tensor>;
  std::vector<PassingStage> stages{[this, seen, part](const Tensor& in, Passed& passed) {
    if (reads_embeddings_) passed.push_back(in);
    return embed(in, seen, part);
  }};
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    stages.emplace_back([this, i, state](const Tensor& x, Passed& passed) {
      const MemoryScope block("block" + std::to_string(i));
      return run_block(i, x, passed, state ? &(*state)[i] : nullptr);
    });
  stages.emplace_back([this](const Tensor& x, Passed&) { return (*norm_)(x); });
  return checkpoint_sequential(stages, tokens, state ? Checkpointing() : checkpointing_);
}

Tensor LanguageModel::run_block(std::size_t i, const Tensor& x, std::vector<Tensor>& passed, SequenceState* state) {
  if (reads_embeddings_ && i == 0) passed.push_back(x);
  const std::ptrdiff_t own = reads_embeddings_ ? 2 : 0;
  BlockContext context{.passed = {passed.begin() + own, passed.end()}, .state = state};
  if (reads_embeddings_) context.tokens = passed[0], context.x0 = passed[1];
  const std::int64_t seen = state ? state->length : 0;
  Tensor result = blocks_[i]->forward(x, context);
  if (!result.defined() || result.shape() != x.shape() || result.dtype() != x.dtype() || result.device() != x.device())
    throw ShapeError(fmt::format("[language_model] block {} must return a tensor like x: x {}, result {}", i,
                                 describe(x), result.defined() ? describe(result) : "undefined"));
  if (state && state->length != seen + x.size(1))
    throw ValueError(fmt::format("[language_model] block {} must extend its state from {} to {} positions, but has {}",
                                 i, seen, seen + x.size(1), state->length));
  const std::vector<Tensor>& now = context.passed;
  const std::ptrdiff_t before = std::ssize(passed) - own;
  const auto same = [](const Tensor& a, const Tensor& b) { return a.is_same(b); };
  if (std::ssize(now) < before || !std::equal(passed.begin() + own, passed.end(), now.begin(), same))
    throw ValueError(fmt::format("[language_model] block {} may only append to the tensors that are passed on", i));
  passed.insert(passed.end(), now.begin() + before, now.end());
  return result;
}

void LanguageModel::cast_matrices(CallSite) {
  for (const auto& block : blocks_) to(*block, config_.dtype, 2);
  if (head_) to(*head_, config_.dtype, 2);
}

void LanguageModel::set_part(const SequencePart& part) {
  for (const auto& block : blocks_) block->set_part(part);
  part_ = part;
}

Tensor LanguageModel::logits_of(const Tensor& x, CallSite) {
  const MemoryScope scope("head", Category::activation);
  const Tensor logits = linear(x, parameter_for("linear", head_weight(), x));
  const double cap = config_.logit_softcap;
  return cap > 0 ? tanh(logits / cap) * cap : logits;
}

Tensor LanguageModel::logits(const Tensor& tokens, State* state, CallSite) { return logits_of(hidden(tokens, state)); }

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets, bool sum, State* state, CallSite) {
  const Tensor x = hidden(tokens, state);
  const MemoryScope scope("loss", Category::activation);
  return linear_cross_entropy(x, head_weight(), targets,
                              {.reduction = sum ? Reduction::sum : Reduction::mean, .softcap = config_.logit_softcap});
}

Tensor LanguageModel::losses(const Tensor& tokens, const Tensor& targets, State* state, CallSite) {
  const NoGradGuard no_grad;
  const Tensor x = hidden(tokens, state);
  const MemoryScope scope("loss", Category::activation);
  const std::int64_t length = x.size(1),
                     positions = std::max<std::int64_t>(1, most_logits / std::max<std::int64_t>(1, x.size(0)));
  Tensor result = Tensor::empty(tokens.shape(), {.dtype = compute_dtype(x.dtype()), .device = x.device()});
  for (std::int64_t begin = 0; begin < length; begin += positions) {
    const std::int64_t end = std::min(begin + positions, length);
    const Tensor logits = logits_of(slice(x, 1, begin, end));
    slice(result, 1, begin, end)
        .copy_from(cross_entropy(logits, slice(targets, 1, begin, end), {.reduction = Reduction::none}));
  }
  return result;
}

std::vector<Tensor> LanguageModel::mixing_weights(const Tensor& tokens, CallSite) {
  const NoGradGuard no_grad;
  const MemoryScope scope("mixing_weights", Category::weights);
  std::vector<Tensor> result;
  Tensor x = embed(tokens, 0, {});
  std::vector<Tensor> passed;
  if (reads_embeddings_) passed.push_back(tokens);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    result.push_back(blocks_[i]->mixing_weights(x));
    x = run_block(i, x, passed, nullptr);
  }
  return result;
}

}  // namespace poolgrad::nn
