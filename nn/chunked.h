// Computes the loss of a language model, and its gradient, chunk by chunk, for sequences that do not fit into memory.
//
// The chunks of a sequence go through all layers one after another. A chunk passes the states of the layers on to the
// next one: for attention, the keys and values that later positions still see. The forward pass keeps only these
// states. The backward pass takes the chunks in reverse and runs each again from its first state. It carries the
// gradient of that state to the chunk before. This is backpropagation through time with checkpointed states (Gruslys et
// al. 2016), and a step is a chunk. The gradient is exact: nothing is truncated or approximated.
#pragma once

#include <cstdint>

#include "nn/language_model.h"

namespace poolgrad::nn {

struct ChunkedOptions {
  /// Positions of a chunk; the last one may be shorter. A chunk of a few windows recomputes little.
  std::int64_t chunk = 4096;
  /// Stores the state before every N-th chunk. The backward pass recomputes the states between by one more forward
  /// pass. Of n chunks, n / store_every + store_every states are in memory.
  std::int64_t store_every = 1;
};

/// Returns the sum over all positions of -log p(target | tokens so far). Loss and gradients equal those of
/// model.loss(tokens, targets, true) up to rounding. tokens and targets are (B, T) i64. T may exceed the model's
/// context, unless positions are learned. Dropout drops the same elements and weights as in one call, since the
/// generators hand out the ranges of the whole sequence. The states are saved tensors, so that a SavedTensorPolicy
/// applies to them.
///
/// With windows, memory is that of one chunk and of the stored states, for any length. With patterns that see all
/// positions, it is about three times that of all keys and values. A hook of a parameter sees the gradient of every
/// chunk, and then the sum of the hook's results. The model must outlive the graph. Throws ShapeError; ValueError for
/// sizes below 1, and for a mixer that looks ahead or does not continue sequences; Error for a second derivative. The
/// backward pass throws Error if a parameter was written or replaced since the forward pass, or if train() or eval()
/// changed dropout.
Tensor chunked_loss(LanguageModel& model, const Tensor& tokens, const Tensor& targets,
                    const ChunkedOptions& options = {}, CallSite = {});

}  // namespace poolgrad::nn
