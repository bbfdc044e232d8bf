#include "attention/ring/shard.h"

#include <algorithm>

#include "allocator/error.h"
#include "tensor/geometry.h"

namespace poolgrad::attention {

namespace {

/// Where the piece of a map lies in the whole sequence, whose position 0 is row 0.
Tensor piece_of(const Tensor& whole, int dim, const kernels::PositionMap& map,
                const kernels::PositionMap::Piece& piece) {
  return whole.alias(
      sliced(whole.geometry(), dim, piece.position, piece.position + (piece.count - 1) * map.stride + 1, map.stride));
}
Tensor rows_of(const Tensor& shard, int dim, const kernels::PositionMap::Piece& piece) {
  return shard.alias(sliced(shard.geometry(), dim, piece.row, piece.row + piece.count, 1));
}

/// Where chunk `chunk` of `chunks` begins: floor(length * chunk / chunks).
std::int64_t boundary(std::int64_t length, std::int64_t chunk, std::int64_t chunks) {
  return length / chunks * chunk + length % chunks * chunk / chunks;
}

}  // namespace

std::string to_string(Layout layout) {
  return layout == Layout::contiguous ? "contiguous" : layout == Layout::zigzag ? "zigzag" : "striped";
}

Layout parse_layout(const std::string& text) {
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    if (to_string(layout) == text) return layout;
  throw ValueError("[layout] not contiguous, zigzag or striped: " + text);
}

kernels::PositionMap shard_map(Layout layout, std::int64_t length, int rank, int ranks, std::int64_t offset) {
  if (layout == Layout::striped) {
    const std::int64_t count = kernels::ceil_div(length - rank, ranks);
    return {count, count, offset + rank, offset + rank, ranks};
  }
  if (layout == Layout::contiguous) {
    const std::int64_t begin = boundary(length, rank, ranks);
    return kernels::PositionMap::contiguous(boundary(length, rank + 1, ranks) - begin, offset + begin);
  }
  const std::int64_t chunks = 2 * static_cast<std::int64_t>(ranks), mirrored = chunks - 1 - rank;
  const std::int64_t first = boundary(length, rank, chunks), split = boundary(length, rank + 1, chunks) - first;
  const std::int64_t second = boundary(length, mirrored, chunks);
  const std::int64_t rest = boundary(length, mirrored + 1, chunks) - second;
  if (first + split == second || rest == 0) return kernels::PositionMap::contiguous(split + rest, offset + first);
  if (split == 0) return kernels::PositionMap::contiguous(rest, offset + second);
  return {split + rest, split, offset + first, offset + second, 1};
}

std::vector<int> shard_owners(Layout layout, std::int64_t length, int ranks, std::int64_t begin, std::int64_t end) {
  begin = std::max<std::int64_t>(begin, 0), end = std::min(end, length);
  std::vector<int> owners;
  if (begin >= end) return owners;
  if (layout == Layout::striped) {
    for (std::int64_t at = begin; at < end && at < begin + ranks; ++at) owners.push_back(static_cast<int>(at % ranks));
    return owners;
  }
  const std::int64_t chunks = layout == Layout::contiguous ? ranks : 2 * static_cast<std::int64_t>(ranks);
  std::int64_t chunk = 0;  // the one that has `begin`
  for (std::int64_t beyond = chunks; beyond - chunk > 1;) {
    const std::int64_t middle = chunk + (beyond - chunk) / 2;
    (boundary(length, middle, chunks) <= begin ? chunk : beyond) = middle;
  }
  for (; chunk < chunks && boundary(length, chunk, chunks) < end; ++chunk)
    if (boundary(length, chunk, chunks) < boundary(length, chunk + 1, chunks))
      owners.push_back(static_cast<int>(chunk < ranks ? chunk : chunks - 1 - chunk));
  return owners;
}

Tensor take_shard(const Tensor& whole, Layout layout, int rank, int ranks, int dim) {
  const kernels::PositionMap map = shard_map(layout, whole.size(dim), rank, ranks);
  Shape shape = whole.shape();
  shape[dim] = map.count;
  Tensor shard = Tensor::empty(shape, whole.options());
  for (int n = 0; n < 2; ++n)
    if (const auto piece = map.piece(n); piece.count > 0)
      rows_of(shard, dim, piece).copy_from(piece_of(whole.detach(), dim, map, piece));
  return shard;
}

Tensor join_shards(const std::vector<Tensor>& shards, Layout layout, int dim) {
  if (shards.empty()) throw ValueError("[join_shards] no shards");
  const int ranks = static_cast<int>(shards.size());
  Shape shape = shards[0].shape();
  shape[dim] = 0;
  for (const Tensor& shard : shards) shape[dim] += shard.size(dim);
  Tensor whole = Tensor::empty(shape, shards[0].options());
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensor& shard = shards[static_cast<std::size_t>(rank)];
    const kernels::PositionMap map = shard_map(layout, shape[dim], rank, ranks);
    Shape expected = shape;
    expected[dim] = map.count;
    if (shard.shape() != expected || shard.options().dtype != whole.dtype() || shard.device() != whole.device())
      throw ShapeError("[join_shards] the part of rank " + std::to_string(rank) + " is " + describe(shard) +
                       ", which is not its part of the " + to_string(layout) + " whole " + describe(whole));
    for (int n = 0; n < 2; ++n)
      if (const auto piece = map.piece(n); piece.count > 0)
        piece_of(whole, dim, map, piece).copy_from(rows_of(shard.detach(), dim, piece));
  }
  return whole;
}

}  // namespace poolgrad::attention
