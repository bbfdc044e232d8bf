#include "allocator/replay/zoo/transformer.h"

#include <utility>

namespace poolgrad {

namespace {

constexpr std::size_t per_layer = 12;

}  // namespace

Transformer::Transformer(WorkloadBuilder& out, const TransformerShape& shape) : out_(out), shape_(shape) {
  const std::size_t c = shape.width;
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    for (const std::size_t count : {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c}) {
      parameters_.push_back(shape.element * count);
    }
  }
  for (const std::size_t count : {shape.vocabulary * c, c, c}) parameters_.push_back(shape.element * count);
  for (const std::size_t bytes : parameters_) make(bytes, Category::parameter);
  has_gradient_.resize(parameters_.size());
}

Transformer::Sizes Transformer::sizes(std::size_t batch, std::size_t context) const {
  const std::size_t tokens = batch * context;
  return {tokens, tokens * shape_.width * shape_.element, 4 * tokens, batch, context};
}

void Transformer::step(std::size_t batch, std::size_t context) {
  out_.step();
  accumulate(batch, context);
  update();
}

void Transformer::accumulate(std::size_t batch, std::size_t context) {
  const Sizes s = sizes(batch, context);
  const std::size_t logits_bytes = s.tokens * shape_.vocabulary * shape_.element;
  const std::uint32_t input = make(8 * s.tokens, Category::input);
  const std::uint32_t target = make(8 * s.tokens, Category::input);
  std::uint32_t x = make(s.row, Category::activation);
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < shape_.layers; ++i) {
    Layer layer = forward(s, x);
    if (shape_.checkpointing) {
      release(layer);
      const std::uint32_t layer_input = layer.input;
      layer = {};
      layer.input = layer_input;
    }
    layers.push_back(std::move(layer));
  }
  const std::uint32_t normed = make(s.row, Category::activation);
  const std::uint32_t mean = make(s.statistic, Category::activation);
  const std::uint32_t logits = make(logits_bytes, Category::activation);
  const std::uint32_t losses = make(s.statistic, Category::temp);
  const std::uint32_t loss = make(4, Category::activation);
  out_.free(losses);

  const std::uint32_t d_logits = make(logits_bytes, Category::gradient);
  out_.free(logits);
  std::uint32_t d = make(s.row, Category::gradient);
  gradient_of(per_layer * shape_.layers);
  out_.free(d_logits);
  const std::uint32_t d_normed = std::exchange(d, make(s.row, Category::gradient));
  out_.free(d_normed);
  out_.free({normed, mean, x});
  gradient_of(per_layer * shape_.layers + 1);
  gradient_of(per_layer * shape_.layers + 2);
  for (std::size_t i = shape_.layers; i-- > 0;) d = backward(s, layers[i], i, d);
  out_.free({d, loss, input, target});
}

Transformer::Layer Transformer::forward(const Sizes& s, std::uint32_t& x) {
  const auto keep = [&](std::size_t bytes) { return make(bytes, Category::activation); };
  Layer layer;
  layer.norm1 = {keep(s.row), keep(s.statistic), keep(s.statistic)};
  const std::uint32_t packed = make(3 * s.row, Category::temp);
  layer.qkv = {make(s.row, Category::query), make(s.row, Category::key), make(s.row, Category::value)};
  out_.free(packed);
  if (attention) attention(s.batch, s.context);
  layer.attended = {make(s.row, Category::output), keep(s.statistic * shape_.heads)};
  const std::uint32_t projected = make(s.row, Category::temp);
  const std::uint32_t x1 = keep(s.row);
  out_.free(projected);
  layer.projected = {x1};
  layer.norm2 = {keep(s.row), keep(s.statistic), keep(s.statistic)};
  if (feed_forward) {
    layer.hidden = feed_forward(s.tokens);
  } else {
    layer.hidden = {keep(4 * s.row), keep(4 * s.row)};
  }
  const std::uint32_t result = make(s.row, Category::temp);
  layer.input = std::exchange(x, keep(s.row));
  out_.free(result);
  return layer;
}

void Transformer::release(const Layer& layer) {
  for (const auto* blocks :
       {&layer.norm1, &layer.qkv, &layer.attended, &layer.projected, &layer.norm2, &layer.hidden}) {
    out_.free(*blocks);
  }
}

void Transformer::gradient_of(std::size_t parameter) {
  if (has_gradient_[parameter]) {
    // Accumulated: the new part is added to the old.
    out_.free(make(parameters_[parameter], Category::gradient));
    return;
  }
  has_gradient_[parameter] = true;
  gradients_.push_back(make(parameters_[parameter], Category::gradient));
  if (on_gradient) on_gradient(gradients_.back());
}

std::uint32_t Transformer::backward(const Sizes& s, Layer& layer, std::size_t index, std::uint32_t d) {
  const auto gradient = [&](std::size_t bytes) { return make(bytes, Category::gradient); };
  if (shape_.checkpointing) {
    const std::uint32_t input = layer.input;
    std::uint32_t x = input;
    layer = forward(s, x);
    out_.free(x);
  }
  std::size_t next = per_layer * (index + 1);
  gradient_of(--next);
  gradient_of(--next);
  const std::uint32_t d_norm2 = [&] {
    if (feed_forward_backward) {
      feed_forward_backward(s.tokens, layer.hidden);
      return gradient(s.row);
    }
    const std::uint32_t d_active = gradient(4 * s.row);
    out_.free(layer.hidden[1]);
    const std::uint32_t d_hidden = gradient(4 * s.row);
    out_.free({d_active, layer.hidden[0]});
    const std::uint32_t result = gradient(s.row);
    out_.free(d_hidden);
    return result;
  }();
  gradient_of(--next);
  gradient_of(--next);
  const std::uint32_t d_x1 = gradient(s.row);
  gradient_of(--next);
  gradient_of(--next);
  out_.free(layer.norm2);
  out_.free(layer.projected);
  out_.free(d_norm2);
  const std::uint32_t d1 = gradient(s.row);
  out_.free({d_x1, d});
  const std::uint32_t d_attended = gradient(s.row);
  gradient_of(--next);
  gradient_of(--next);
  const std::uint32_t workspace = make(s.statistic * shape_.heads, Category::workspace);
  if (attention) attention(s.batch, s.context);
  const std::vector<std::uint32_t> d_qkv = {gradient(s.row), gradient(s.row), gradient(s.row)};
  out_.free({workspace, d_attended});
  out_.free(layer.qkv);
  out_.free(layer.attended);
  const std::uint32_t d_packed = gradient(3 * s.row);
  out_.free(d_qkv);
  gradient_of(--next);
  gradient_of(--next);
  const std::uint32_t d_norm1 = gradient(s.row);
  out_.free(d_packed);
  const std::uint32_t d_x0 = gradient(s.row);
  gradient_of(--next);
  gradient_of(--next);
  out_.free(layer.norm1);
  out_.free(d_norm1);
  const std::uint32_t result = gradient(s.row);
  out_.free({d_x0, d1, layer.input});
  return result;
}

void Transformer::update() {
  if (!std::exchange(has_states_, true)) {
    for (const std::size_t bytes : parameters_) {
      const std::size_t state = bytes / shape_.element * 4;
      for (int i = 0; i < (shape_.master_copies ? 3 : 2); ++i) make(state, Category::optimizer_state);
    }
  }
  for (const std::size_t bytes : parameters_) {
    out_.free(make(shape_.fused_optimizer ? 8 : bytes, Category::temp));
  }
  out_.free(gradients_);
  gradients_.clear();
  has_gradient_.assign(has_gradient_.size(), false);
}

void Transformer::evaluate(std::size_t batch, std::size_t context) {
  const Sizes s = sizes(batch, context);
  const std::uint32_t input = make(8 * s.tokens, Category::input);
  std::uint32_t x = make(s.row, Category::activation);
  for (std::size_t i = 0; i < shape_.layers; ++i) {
    const Layer layer = forward(s, x);
    release(layer);
    out_.free(layer.input);
  }
  const std::uint32_t logits = make(s.tokens * shape_.vocabulary * shape_.element, Category::activation);
  out_.free({x, logits, input});
}

}  // namespace poolgrad
