// Tiles: what acts on positions alone, such as a feed-forward layer, a norm or a projection, needs its intermediate
// tensors for no more than a few positions at once, in either pass.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "allocator/memory_scope.h"
#include "tensor/tensor.h"

namespace poolgrad {

/// function(inputs), `tile` positions of dimension `dim` at a time, each tile a checkpoint (checkpoint.h): what exists
/// besides inputs, result and their gradients is of the size of a tile (the gradient of an input exists twice while its
/// tiles are put together). All inputs have `dim`, with the same size, and so has the result; an undefined input stays
/// so. Every position of the result must depend on that position of the inputs alone. The result and the gradients of
/// the inputs are then those of function(inputs), as far as operators give a row the same bits among fewer rows;
/// gradients of what the function captures are added up from the last tile to the first. Throws ValueError for a tile
/// below 1, ShapeError where sizes differ.
Tensor checkpoint_tiled(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                        const std::vector<Tensor>& inputs, std::int64_t dim, std::int64_t tile, CallSite = {});
Tensor checkpoint_tiled(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, std::int64_t dim,
                        std::int64_t tile, CallSite = {});

}  // namespace poolgrad
