// Checkpoints by tiles. A function that acts on each position by itself, such as a feed-forward layer, a norm or a
// projection, then needs intermediate tensors of one tile only, in both passes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/memory_scope.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// Returns function(inputs), computed for `tile` positions of dimension `dim` at a time; each tile is a checkpoint
/// (checkpoint.h). Besides inputs, result and their gradients, only memory of the size of a tile is needed. The
/// gradient of an input exists twice while its tiles are joined. All inputs and the result have `dim`, with the same
/// size; undefined inputs stay undefined. Each position of the result must depend on that position of the inputs only.
///
/// Throws ValueError for a tile below 1, ShapeError if sizes differ. The result and the gradients of the inputs equal
/// those of function(inputs), if operators give a row the same bits among fewer rows. Gradients of captured tensors are
/// summed from the last tile to the first.
Tensor checkpoint_tiled(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                        const std::vector<Tensor>& inputs, std::int64_t dim, std::int64_t tile, CallSite = {});
Tensor checkpoint_tiled(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, std::int64_t dim,
                        std::int64_t tile, CallSite = {});

}  // namespace poolgrad
