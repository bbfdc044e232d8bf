#include "attention/multihead_attention.h"

#include <cmath>
#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/heads.h"
#include "attention/kv_cache.h"
#include "attention/ring.h"
#include "autograd/rope.h"
#include "autograd/views.h"

namespace poolgrad::attention {

namespace {

std::int64_t checked_head_dim(std::int64_t width, const MultiheadAttentionOptions& options) {
  const std::string sizes = ": width " + std::to_string(width) + ", heads " + std::to_string(options.heads) +
                            ", kv_heads " + std::to_string(options.kv_heads);
  const auto refuse = [&](const std::string& reason) { throw ValueError("[multihead_attention] " + reason + sizes); };
  if (width < 1 || options.heads < 1 || options.kv_heads < 1) refuse("sizes must be at least 1");
  if (width % options.heads != 0) refuse("width is not divisible by heads");
  if (options.heads % options.kv_heads != 0) refuse("heads are not a multiple of kv_heads");
  if (options.rope_base && (width / options.heads) % 2 != 0) refuse("rotary positions need an even width per head");
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0))
    refuse("the softcap " + std::to_string(*options.softcap) + " is not a positive number");
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    refuse("the dropout " + std::to_string(options.dropout) + " is outside [0, 1)");
  if (options.ring_size < 1) refuse("a ring has at least 1 rank, not " + std::to_string(options.ring_size));
  return width / options.heads;
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                                       const nn::ParameterOptions& parameters)
    : options_(options),
      head_dim_(checked_head_dim(width, options)),
      projection_(width, (options.heads + 2 * options.kv_heads) * head_dim_, {.bias = options.bias}, parameters),
      output_(width, width, {.bias = options.bias, .deviation = options.output_deviation}, parameters),
      generator_(parameters.generator) {
  add_module("projection", projection_);
  add_module("output", output_);
  if (options.qk_norm) {
    q_norm_ = std::make_unique<nn::RMSNorm>(head_dim_, 1e-6, parameters);
    k_norm_ = std::make_unique<nn::RMSNorm>(head_dim_, 1e-6, parameters);
    add_module("q_norm", *q_norm_);
    add_module("k_norm", *k_norm_);
  }
  if (options.sinks) sinks_ = constant_parameter("sinks", {options.heads}, 0.0, parameters);
  if (options.alibi) slopes_ = alibi_slopes(options.heads, {compute_dtype(parameters.dtype), parameters.device});
}

std::vector<Tensor> MultiheadAttention::project(const Tensor& x, std::int64_t position) {
  const std::int64_t heads = options_.heads, kv_heads = options_.kv_heads;
  const MemoryScope scope("projection", Category::query);  // queries, keys and values in one block
  const Tensor packed = reshape(projection_(x), {x.size(0), x.size(1), heads + 2 * kv_heads, head_dim_});
  const auto rotated = [&](const Tensor& part) {
    return options_.rope_base ? rope(part, position, *options_.rope_base) : part;
  };
  if (options_.qk_norm || !options_.rope_base) {
    std::vector<Tensor> qkv = split_heads(packed, {heads, kv_heads, kv_heads});
    if (options_.qk_norm) {
      qkv[0] = rotated((*q_norm_)(qkv[0]));
      qkv[1] = rotated((*k_norm_)(qkv[1]));
    }
    return qkv;
  }
  const std::vector<Tensor> parts = split_heads(packed, {heads + kv_heads, kv_heads});
  std::vector<Tensor> qkv = split_heads(rotated(parts[0]), {heads, kv_heads});
  qkv.push_back(parts[1]);
  return qkv;
}

Tensor MultiheadAttention::forward(const Tensor& x, nn::SequenceState* state) {
  const std::int64_t position = state ? state->length : 0;
  std::vector<Tensor> qkv = project(x, position);
  if (state) {
    state->tensors.resize(2);
    for (std::size_t i = 0; i < 2; ++i) qkv[i + 1] = append_positions(state->tensors[i], position, qkv[i + 1]);
    state->length += x.size(1);
  }
  const AttendOptions options{.softcap = options_.softcap,
                              .alibi = slopes_,
                              .sinks = sinks_,
                              .dropout = training() ? options_.dropout : 0.0,
                              .generator = generator_};
  const bool ring = options_.ring_size > 1 && state == nullptr;
  const Tensor mixed = ring ? ring_attend_all(qkv[0], qkv[1], qkv[2], options_.pattern, options_.ring_size,
                                              {.attend = options, .layout = options_.ring_layout})
                                  .out
                            : attend(qkv[0], qkv[1], qkv[2], options_.pattern, options).out;
  return output_(reshape(mixed, {x.size(0), x.size(1), options_.heads * head_dim_}));
}

}  // namespace poolgrad::attention
