#include "autograd/memory/checkpoint_tiled.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator/error.h"
#include "allocator/stream.h"
#include "autograd/autocast.h"
#include "autograd/engine/record.h"
#include "autograd/engine/tape_record.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/operators/shared.h"
#include "autograd/operators/views.h"
#include "kernels/elementwise.h"
#include "tensor/generator.h"

namespace poolgrad {
namespace {

/// Copies `part` to its place in the whole and returns that slice. It has the memory of the whole and the gradient
/// record of the part, so the part can be freed.
Tensor in_its_place(const Tensor& part, const Tensor& whole, int dim, std::int64_t start) {
  Tensor slot = whole.alias(sliced(whole.geometry(), dim, start, start + part.shape()[dim], 1));
  kernels::copy(current_stream(slot.device()), slot.view(), part.view());
  if (Edge edge = gradient_edge(part); edge.node != nullptr)
    slot.set_grad_record(std::make_shared<TapeRecord>(std::move(edge)));
  return slot;
}

/// Returns the size of dimension `dim`, which all inputs share.
std::int64_t positions_of(const std::vector<Tensor>& inputs, std::int64_t dim, std::int64_t tile) {
  std::string text;
  const Tensor* first = nullptr;
  bool same = true;
  for (const Tensor& input : inputs) {
    text += (text.empty() ? "" : ", ") + describe(input);
    if (!input.defined()) continue;
    if (first == nullptr) first = &input;
    same &= dim < input.dim() && input.shape()[static_cast<int>(dim)] == first->shape()[static_cast<int>(dim)];
  }
  if (tile < 1) throw ValueError("[checkpoint_tiled] a tile must have at least 1 position: " + std::to_string(tile));
  if (first == nullptr) throw ValueError("[checkpoint_tiled] no tensor to cut into tiles");
  if (!same) throw ShapeError("[checkpoint_tiled] inputs differ in dimension " + std::to_string(dim) + ": " + text);
  return first->shape()[static_cast<int>(dim)];
}

}  // namespace

Tensor checkpoint_tiled(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                        const std::vector<Tensor>& inputs, std::int64_t dim, std::int64_t tile, CallSite) {
  const auto known = std::find_if(inputs.begin(), inputs.end(), [](const Tensor& input) { return input.defined(); });
  const int axis = known == inputs.end() ? 0 : normalize_dim("checkpoint_tiled", dim, known->shape());
  const std::int64_t positions = positions_of(inputs, axis, tile);
  std::vector<std::int64_t> starts, sizes;
  for (std::int64_t start = 0; start < positions || sizes.empty(); start += tile) {
    starts.push_back(start);
    sizes.push_back(std::min(tile, positions - start));
  }
  std::vector<std::vector<Tensor>> tiles;  // of each input
  for (const Tensor& input : inputs)
    tiles.push_back(input.defined() ? record_pieces("tiles", input, axis, sizes) : std::vector<Tensor>(sizes.size()));

  const Definition of_a_tile = [function](const std::vector<Tensor>& x) { return std::vector<Tensor>{function(x)}; };
  Tensor out;
  std::vector<Tensor> parts;
  const auto random = std::make_shared<RandomLog>();
  const double flops_before = SavedTensor::flops_recorded();
  auto log = std::make_optional<RandomLogGuard>(*random, RandomLogGuard::records);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    std::vector<Tensor> x;
    for (std::vector<Tensor>& of_input : tiles) x.push_back(std::exchange(of_input[i], {}));
    const Tensor part = checkpoint_part(of_a_tile, x)[0];
    Shape whole = part.shape();
    if (axis >= whole.rank() || whole[axis] != sizes[i])
      throw ShapeError("[checkpoint_tiled] the result of a tile must have its " + std::to_string(sizes[i]) +
                       " positions in dimension " + std::to_string(axis) + ": " + describe(part));
    whole[axis] = positions;
    if (i == 0) out = Tensor::empty(whole, part.options());
    if (out.shape() != whole || out.dtype() != part.dtype() || out.device() != part.device())
      throw ShapeError("[checkpoint_tiled] results of tiles differ: " + describe(part) + " beside parts of " +
                       describe(out));
    parts.push_back(in_its_place(part, out, axis, starts[i]));
  }
  log.reset();
  if (!wants_gradient(parts)) return out;
  record("joined_tiles", parts, {out}, [axis, starts, tile](const BackwardCall& call) -> Gradients {
    Gradients gradients(starts.size());
    for (std::size_t i = 0; i < starts.size(); ++i)
      if (call.needs(static_cast<int>(i))) gradients[i] = slice(call.gradient(), axis, starts[i], starts[i] + tile);
    return gradients;
  });
  // The surrounding policy sees all tiles as one operator of the inputs.
  const double flops = SavedTensor::flops_recorded() - flops_before;
  const Recipe again = recipe(
      [function, random, axis, tile, low = AutocastScope::current()](const std::vector<Tensor>& x) {
        const AutocastScope as_then(low);
        const RandomLogGuard replay(*random, RandomLogGuard::replays);
        return checkpoint_tiled(function, x, axis, tile);
      },
      [flops] { return flops; });
  const std::string name = "checkpoint_tiled";
  gradient_edge(out).node->set_note(SavedTensor::pack_all({name, inputs, {out}, again}));
  return out;
}

Tensor checkpoint_tiled(const std::function<Tensor(const Tensor&)>& function, const Tensor& input, std::int64_t dim,
                        std::int64_t tile, CallSite) {
  return checkpoint_tiled([function](const std::vector<Tensor>& x) { return function(x[0]); },
                          std::vector<Tensor>{input}, dim, tile);
}

}  // namespace poolgrad
