// Checkpoints a chain of layers (autograd/memory/checkpoint.h). A policy trades saved memory against recomputation. All
// policies give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace poolgrad::nn {

/// none: keeps every saved tensor. block: keeps the input of every stage. sqrt: keeps the inputs of about sqrt(n)
/// segments of equal length (Chen et al. 2016). revolve: keeps the inputs of at most `slots` stages at a time, the
/// first included, and the saved tensors of one stage, with the fewest calls possible (Griewank & Walther 2000).
struct Checkpointing {
  enum class Kind { none, block, sqrt, revolve };
  Kind kind = Kind::none;
  std::int64_t slots = 0;  // revolve; 0: ceil(log2 n) + 1

  /// Parses "none", "block", "sqrt", "revolve" or "revolve:SLOTS" with at least one slot. Throws ValueError.
  static Checkpointing parse(const std::string& text);
  std::string to_string() const;
  /// Returns the number of stage calls in a forward and backward pass over `stages` stages.
  std::int64_t calls(std::int64_t stages) const;
};

using Stage = std::function<Tensor(const Tensor&)>;
/// Applies the stages to x one after another and returns the last result. Captures of the stages must live as long as
/// the graph.
Tensor checkpoint_sequential(const std::vector<Stage>& stages, const Tensor& x, Checkpointing policy, CallSite = {});
/// A stage that also sees the tensors that earlier stages passed on. It may append tensors for later stages, the same
/// number in every call. They are never recomputed for those stages, so their memory stays allocated.
using PassingStage = std::function<Tensor(const Tensor& x, std::vector<Tensor>& passed)>;
Tensor checkpoint_sequential(const std::vector<PassingStage>& stages, const Tensor& x, Checkpointing policy,
                             CallSite = {});
Tensor checkpoint_sequential(const std::vector<Layer*>& layers, const Tensor& x, Checkpointing policy, CallSite = {});

}  // namespace poolgrad::nn
