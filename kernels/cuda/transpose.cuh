// Copies between layouts whose adjacent elements lie in different dimensions. Tiles go through shared memory, so that
// neighboring threads both read and write neighboring elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "kernels/cpu/strided.h"
#include "kernels/cuda/elements.cuh"
#include "kernels/view.h"

namespace poolgrad::kernels::cuda {

/// (outer..., rows, columns): elements of a row of `out` are adjacent, and those of a column of `from`.
struct Transposition {
  std::int64_t rows = 0, columns = 0, out_row = 0, from_column = 0;
  std::int64_t outer = 1;  // product of the outer dimensions
  int outer_rank = 0;
  std::int64_t shape[max_rank] = {}, out_strides[max_rank] = {}, from_strides[max_rank] = {};

  static constexpr std::int64_t edge = 32;  // of a tile

  /// Returns none if both views have adjacent elements in the same dimension, or one has none. Also returns none for
  /// less than half a tile.
  static std::optional<Transposition> between(const View& out, const View& from) {
    std::array<View, 2> views = {out, from};
    sort_dimensions(views);
    merge_dimensions(views);
    const auto& [to, x] = views;
    const int last = to.rank - 1;
    Transposition found;
    int adjacent = -1;
    for (int d = 0; d < last; ++d)
      if (x.strides[d] == 1) adjacent = d;
    if (adjacent < 0 || to.strides[last] != 1 || x.strides[last] == 1) return {};
    found.rows = to.shape[adjacent], found.columns = to.shape[last];
    found.out_row = to.strides[adjacent], found.from_column = x.strides[last];
    if (found.rows * found.columns < edge * edge / 2) return {};
    for (int d = 0; d < last; ++d) {
      if (d == adjacent) continue;
      found.outer *= to.shape[d];
      found.shape[found.outer_rank] = to.shape[d];
      found.out_strides[found.outer_rank] = to.strides[d];
      found.from_strides[found.outer_rank++] = x.strides[d];
    }
    return found;
  }
  POOLGRAD_HD std::int64_t down() const { return (rows + edge - 1) / edge; }
  POOLGRAD_HD std::int64_t across() const { return (columns + edge - 1) / edge; }
  POOLGRAD_HD std::int64_t tiles() const { return outer * down() * across(); }
};

inline constexpr int transposing_threads = 256;

template <class Word>
__global__ __launch_bounds__(transposing_threads) void transpose_tiles(Word* out, const Word* from,
                                                                       const __grid_constant__ Transposition all) {
  constexpr int edge = static_cast<int>(Transposition::edge), lines = transposing_threads / edge;
  POOLGRAD_SHARED(Word, staged, edge * (edge + 1));  // odd line length avoids bank conflicts by columns
  const int lane = static_cast<int>(threadIdx.x) % edge, line = static_cast<int>(threadIdx.x) / edge;
  for (std::int64_t n = blockIdx.x; n < all.tiles(); n += gridDim.x) {
    const std::int64_t column = n % all.across() * edge, row = n / all.across() % all.down() * edge;
    std::int64_t rest = n / all.across() / all.down(), at_out = 0, at_from = 0;
    for (int d = all.outer_rank - 1; d >= 0; --d) {
      at_out += rest % all.shape[d] * all.out_strides[d];
      at_from += rest % all.shape[d] * all.from_strides[d];
      rest /= all.shape[d];
    }
    __syncthreads();  // all threads have read the last tile
    for (int c = line; c < edge; c += lines)
      if (row + lane < all.rows && column + c < all.columns)
        staged[c * (edge + 1) + lane] = from[at_from + (column + c) * all.from_column + row + lane];
    __syncthreads();
    for (int r = line; r < edge; r += lines)
      if (row + r < all.rows && column + lane < all.columns)
        out[at_out + (row + r) * all.out_row + column + lane] = staged[lane * (edge + 1) + r];
  }
}

/// Words per access of whole tiles, and the edge of such a tile.
template <class Word>
inline constexpr int words_at_once = sizeof(Word) == 8 ? 2 : 4;
inline constexpr int whole_edge = 64;

/// The same in tiles of 64 x 64, for rows, columns and addresses that are multiples of words_at_once. A thread
/// transposes squares of words in registers, so every access has several words. The place of a piece depends on its
/// row, to avoid bank conflicts.
template <class Word>
__global__ __launch_bounds__(transposing_threads) void transpose_whole_tiles(
    Word* out, const Word* from, const __grid_constant__ Transposition all) {
  constexpr int n = words_at_once<Word>, edge = whole_edge, pieces = edge / n;
  constexpr int lines = transposing_threads / pieces;  // lines accessed together
  constexpr int squares = pieces * pieces / transposing_threads;
  using Piece = Pack<Word, std::size_t{n}>;
  POOLGRAD_SHARED(Piece, staged, edge * pieces);
  const int piece = static_cast<int>(threadIdx.x) % pieces, line = static_cast<int>(threadIdx.x) / pieces;
  const auto place = [](int row, int at) { return row * pieces + (at ^ (row / n % 8)); };
  // Memory holds fewer than 2^32 tiles; 32-bit divisions are fast.
  const auto down = static_cast<std::uint32_t>((all.rows + edge - 1) / edge),
             across = static_cast<std::uint32_t>((all.columns + edge - 1) / edge);
  const std::uint32_t tiles = static_cast<std::uint32_t>(all.outer) * down * across;
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t above = tile / across;
    std::uint32_t rest = above / down;
    const std::int64_t column = static_cast<std::int64_t>(tile - above * across) * edge;
    const std::int64_t row = static_cast<std::int64_t>(above - rest * down) * edge;
    std::int64_t at_out = 0, at_from = 0;
    for (int d = all.outer_rank - 1; d >= 0; --d) {
      const auto size = static_cast<std::uint32_t>(all.shape[d]);
      at_out += rest % size * all.out_strides[d];
      at_from += rest % size * all.from_strides[d];
      rest /= size;
    }
    Piece read[std::size_t{squares}][std::size_t{n}] = {};
    POOLGRAD_UNROLL
    for (int s = 0; s < squares; ++s) {
      const std::int64_t c = column + (s * lines + line) * n, r = row + piece * n;
      if (r >= all.rows || c >= all.columns) continue;
      POOLGRAD_UNROLL
      for (int k = 0; k < n; ++k) read[s][k] = load_whole<Piece>(from + at_from + (c + k) * all.from_column + r);
    }
    __syncthreads();  // all threads have read the last tile
    POOLGRAD_UNROLL
    for (int s = 0; s < squares; ++s) {
      POOLGRAD_UNROLL
      for (int r = 0; r < n; ++r) {
        Piece turned;
        POOLGRAD_UNROLL
        for (int k = 0; k < n; ++k) turned.value[k] = read[s][k].value[r];
        staged[place(piece * n + r, s * lines + line)] = turned;
      }
    }
    __syncthreads();
    POOLGRAD_UNROLL
    for (int r = line; r < edge; r += lines)
      if (row + r < all.rows && column + piece * n < all.columns)
        store_whole(out + at_out + (row + r) * all.out_row + column + piece * n,
                    static_cast<Piece>(staged[place(r, piece)]));
  }
}

/// Returns whether transpose_whole_tiles() supports the layout and alignment.
template <class Word>
bool has_whole_tiles(const View& out, const View& from, const Transposition& all) {
  constexpr std::int64_t n = words_at_once<Word>;
  bool whole = all.rows % n == 0 && all.columns % n == 0 && all.rows >= whole_edge && all.columns >= whole_edge &&
               all.out_row % n == 0 && all.from_column % n == 0;
  for (int d = 0; d < all.outer_rank; ++d) whole &= all.out_strides[d] % n == 0 && all.from_strides[d] % n == 0;
  for (const View* view : {&out, &from})
    whole &= reinterpret_cast<std::uintptr_t>(view->data) % (std::size_t{n} * sizeof(Word)) == 0;
  return whole;
}

/// Queues the copy of words.
template <class Word>
void transpose(Stream stream, const View& out, const View& from, const Transposition& all) {
  for (const View* view : {&out, &from}) check_operand("copy", stream, view->data);
  constexpr std::int64_t enough_blocks = 4096;
  const bool whole = has_whole_tiles<Word>(out, from, all);
  const std::int64_t edge = whole ? whole_edge : Transposition::edge;
  const std::int64_t tiles = all.outer * ((all.rows + edge - 1) / edge) * ((all.columns + edge - 1) / edge);
  launch("copy", whole ? &transpose_whole_tiles<Word> : &transpose_tiles<Word>,
         {{std::min(tiles, enough_blocks)}, {transposing_threads}}, stream, out.as<Word>(), from.as<const Word>(), all);
}

}  // namespace poolgrad::kernels::cuda
