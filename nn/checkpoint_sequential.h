// Which parts of a chain of layers are checkpoints (autograd/memory/checkpoint.h): how much is kept for the backward
// pass, and how much computed again. All of them give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace poolgrad::nn {

/// none: everything is kept. block: the input of every stage. sqrt: the inputs of about sqrt(n) segments of equal
/// length (Chen et al. 2016). revolve: at any time the inputs of at most `slots` stages, that of the first included,
/// and what one stage saves, with the fewest calls possible (Griewank & Walther 2000).
struct Checkpointing {
  enum class Kind { none, block, sqrt, revolve };
  Kind kind = Kind::none;
  std::int64_t slots = 0;  // revolve; 0: ceil(log2 n) + 1

  /// "none", "block", "sqrt", "revolve" or "revolve:SLOTS" with at least one. Throws ValueError.
  static Checkpointing parse(const std::string& text);
  std::string to_string() const;
  /// How often stages are called in a forward and backward pass over `stages` of them.
  std::int64_t calls(std::int64_t stages) const;
};

using Stage = std::function<Tensor(const Tensor&)>;
/// The last stage's result, of the first one's of x. What the stages capture must live as long as the graph.
Tensor checkpoint_sequential(const std::vector<Stage>& stages, const Tensor& x, Checkpointing policy, CallSite = {});
Tensor checkpoint_sequential(const std::vector<Layer*>& layers, const Tensor& x, Checkpointing policy, CallSite = {});

}  // namespace poolgrad::nn
