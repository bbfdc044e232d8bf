// Sequences longer than memory: a language model's loss, and its gradient, chunk by chunk.
//
// The chunks of a sequence go through all layers one after another. What one leaves to the next are the layers' states:
// of attention, the keys and values that later positions still see. The forward pass keeps nothing else. The backward
// pass takes the chunks in reverse: it runs each again, from the state that it began with, and what it finds for the
// gradient of that state is carried to the chunk before, which made it: backpropagation through time with its states
// checkpointed (Gruslys et al. 2016), where a step is a chunk. Nothing is cut off and nothing is approximated.
#pragma once

#include <cstdint>

#include "nn/language_model.h"

namespace poolgrad::nn {

struct ChunkedOptions {
  /// Positions of a chunk; the last one may be shorter. A chunk of a few windows does little work twice.
  std::int64_t chunk = 4096;
  /// States are kept before every so-manieth chunk, and those between are found again by one more forward pass: of n
  /// chunks, n / store_every + store_every states are in memory.
  std::int64_t store_every = 1;
};

/// The sum over all positions of -log p(target | tokens so far), as model.loss(tokens, targets, true) up to rounding,
/// and so are its gradients. tokens and targets are (B, T) i64; T may exceed the model's context, unless it has learned
/// positions. Dropout included: the model's generators hand out the ranges of the whole sequence, and every
/// element and weight is dropped that would be dropped there. Its states are saved tensors, about which a
/// SavedTensorPolicy decides.
///
/// Memory, for windows, is that of a chunk and of the states kept, whatever the length; for patterns that see
/// everything it is about three times that of all keys and values. A hook of a parameter sees the gradient of every
/// chunk, and then the sum of what it made of them. The model must outlive the graph. Throws ShapeError, ValueError for
/// sizes below 1 and for a mixer that looks ahead or does not continue sequences, and Error for a second derivative.
/// Backward throws Error where a parameter was written or is another tensor since, and where train() or eval() was
/// called in between and dropout is another.
Tensor chunked_loss(LanguageModel& model, const Tensor& tokens, const Tensor& targets,
                    const ChunkedOptions& options = {}, CallSite = {});

}  // namespace poolgrad::nn
