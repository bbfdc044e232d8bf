// The allocations of a decoder-only transformer in an eager framework: what forward keeps, what backward takes and
// gives back, when gradients and optimiser states come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/replay/workload_builder.h"

namespace poolgrad {

struct TransformerShape {
  std::size_t layers = 24;
  std::size_t width = 2048;
  std::size_t heads = 16;
  std::size_t vocabulary = 50257;
  std::size_t element = 2;       // bytes of an activation or parameter
  bool checkpointing = false;    // forward keeps the inputs of layers only
  bool master_copies = true;     // the optimiser keeps an f32 copy of each parameter beside its two f32 moments
  bool fused_optimizer = false;  // else it needs a temporary of each parameter's size
};

class Transformer {
 public:
  /// Allocates the parameters.
  Transformer(WorkloadBuilder& out, const TransformerShape& shape);

  /// One training step, with optimiser states made at the end of the first.
  void step(std::size_t batch, std::size_t context);
  /// Forward, backward and gradients; the gradients stay.
  void accumulate(std::size_t batch, std::size_t context);
  /// The optimiser's step; the gradients go.
  void update();
  /// Forward without gradients.
  void evaluate(std::size_t batch, std::size_t context);

  /// Called in place of the feed-forward part of a layer, in forward (returns what is kept) and in backward.
  std::function<std::vector<std::uint32_t>(std::size_t tokens)> feed_forward;
  std::function<void(std::size_t tokens, const std::vector<std::uint32_t>& kept)> feed_forward_backward;
  /// Called with each gradient of a parameter once it is complete.
  std::function<void(std::uint32_t gradient)> on_gradient;
  /// Called in place of the attention operator (q, k, v exist): allocates what it needs and frees it.
  std::function<void(std::size_t batch, std::size_t context)> attention;

 private:
  struct Layer {
    std::uint32_t input = 0;
    std::vector<std::uint32_t> norm1, qkv, attended, projected, norm2, hidden;
  };
  struct Sizes {
    std::size_t tokens, row, statistic, batch, context;
  };

  std::uint32_t make(std::size_t bytes, Category category) { return out_.allocate(bytes, category); }
  Sizes sizes(std::size_t batch, std::size_t context) const;
  /// Returns what backward needs; `x` becomes the layer's output.
  Layer forward(const Sizes& s, std::uint32_t& x);
  void release(const Layer& layer);
  /// Returns the gradient of the layer's input.
  std::uint32_t backward(const Sizes& s, Layer& layer, std::size_t index, std::uint32_t gradient);
  void gradient_of(std::size_t parameter);

  WorkloadBuilder& out_;
  TransformerShape shape_;
  std::vector<std::size_t> parameters_;  // bytes
  std::vector<std::uint32_t> gradients_;
  std::vector<bool> has_gradient_;
  bool has_states_ = false;
};

}  // namespace poolgrad
