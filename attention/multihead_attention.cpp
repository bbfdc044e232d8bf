#include "attention/multihead_attention.h"

#include <string>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "attention/heads.h"
#include "attention/kv_cache.h"
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
  return width / options.heads;
}

}  // namespace

MultiheadAttention::MultiheadAttention(std::int64_t width, const MultiheadAttentionOptions& options,
                                       const nn::ParameterOptions& parameters)
    : options_(options),
      head_dim_(checked_head_dim(width, options)),
      projection_(width, (options.heads + 2 * options.kv_heads) * head_dim_, {.bias = options.bias}, parameters),
      output_(width, width, {.bias = options.bias, .deviation = options.output_deviation}, parameters) {
  add_module("projection", projection_);
  add_module("output", output_);
}

Tensor MultiheadAttention::forward(const Tensor& x, nn::SequenceState* state) {
  const std::int64_t batch = x.size(0), length = x.size(1), heads = options_.heads, kv_heads = options_.kv_heads;
  const std::int64_t position = state ? state->length : 0;
  std::vector<Tensor> qkv;
  {
    const MemoryScope scope("projection", Category::query);  // queries, keys and values in one block
    const Tensor packed = reshape(projection_(x), {batch, length, heads + 2 * kv_heads, head_dim_});
    if (options_.rope_base) {
      const std::vector<Tensor> parts = split_heads(packed, {heads + kv_heads, kv_heads});
      qkv = split_heads(rope(parts[0], position, *options_.rope_base), {heads, kv_heads});
      qkv.push_back(parts[1]);
    } else {
      qkv = split_heads(packed, {heads, kv_heads, kv_heads});
    }
  }
  if (state) {
    state->tensors.resize(2);
    for (std::size_t i = 0; i < 2; ++i) qkv[i + 1] = append_positions(state->tensors[i], position, qkv[i + 1]);
    state->length += length;
  }
  const Tensor mixed = attend(qkv[0], qkv[1], qkv[2], options_.pattern).out;
  return output_(reshape(mixed, {batch, length, heads * head_dim_}));
}

}  // namespace poolgrad::attention
