// The allocations of a decoder-only transformer in an eager framework: saved activations, temporaries of the backward
// pass, gradients and optimizer states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "allocator/lab/replay/workload.h"

namespace poolgrad {

struct TransformerShape {
  std::size_t layers = 24;
  std::size_t width = 2048;
  std::size_t heads = 16;
  std::size_t vocabulary = 50257;
  std::size_t element = 2;       // bytes of an activation or parameter
  bool checkpointing = false;    // forward keeps only the inputs of layers
  bool master_copies = true;     // the optimizer keeps an f32 copy of each parameter beside its two f32 moments
  bool fused_optimizer = false;  // else it needs a temporary of each parameter's size
};

class Transformer {
 public:
  /// Allocates the parameters.
  Transformer(WorkloadBuilder& out, const TransformerShape& shape) : out_(out), shape_(shape) {
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

  /// One training step; the first one allocates optimizer states at its end.
  void step(std::size_t batch, std::size_t context) {
    out_.step();
    accumulate(batch, context);
    update();
  }

  /// Forward and backward; keeps the gradients.
  void accumulate(std::size_t batch, std::size_t context) {
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

  /// The optimizer's step; frees the gradients.
  void update() {
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

  /// Forward without gradients.
  void evaluate(std::size_t batch, std::size_t context) {
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

  /// Replaces the feed-forward part of a layer, in forward (returns the saved blocks) and in backward.
  std::function<std::vector<std::uint32_t>(std::size_t tokens)> feed_forward;
  std::function<void(std::size_t tokens, const std::vector<std::uint32_t>& kept)> feed_forward_backward;
  /// Called with each gradient of a parameter once it is complete.
  std::function<void(std::uint32_t gradient)> on_gradient;
  /// Replaces the attention operator (q, k, v exist): allocates its temporaries and frees them.
  std::function<void(std::size_t batch, std::size_t context)> attention;

 private:
  static constexpr std::size_t per_layer = 12;  // parameters

  struct Layer {
    std::uint32_t input = 0;
    std::vector<std::uint32_t> norm1, qkv, attended, projected, norm2, hidden;
  };
  struct Sizes {
    std::size_t tokens, row, statistic, batch, context;
  };

  std::uint32_t make(std::size_t bytes, Category category) { return out_.allocate(bytes, category); }
  Sizes sizes(std::size_t batch, std::size_t context) const {
    const std::size_t tokens = batch * context;
    return {tokens, tokens * shape_.width * shape_.element, 4 * tokens, batch, context};
  }

  /// Returns the saved blocks; `x` becomes the layer's output.
  Layer forward(const Sizes& s, std::uint32_t& x) {
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

  void release(const Layer& layer) {
    for (const auto* blocks :
         {&layer.norm1, &layer.qkv, &layer.attended, &layer.projected, &layer.norm2, &layer.hidden}) {
      out_.free(*blocks);
    }
  }

  /// Returns the gradient of the layer's input.
  std::uint32_t backward(const Sizes& s, Layer& layer, std::size_t index, std::uint32_t d) {
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

  void gradient_of(std::size_t parameter) {
    if (has_gradient_[parameter]) {
      // Accumulates: adds the new part to the old.
      out_.free(make(parameters_[parameter], Category::gradient));
      return;
    }
    has_gradient_[parameter] = true;
    gradients_.push_back(make(parameters_[parameter], Category::gradient));
    if (on_gradient) on_gradient(gradients_.back());
  }

  WorkloadBuilder& out_;
  TransformerShape shape_;
  std::vector<std::size_t> parameters_;  // bytes
  std::vector<std::uint32_t> gradients_;
  std::vector<bool> has_gradient_;
  bool has_states_ = false;
};

}  // namespace poolgrad
