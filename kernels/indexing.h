// Gathers and scatters. Indices are i64 and already checked (see check_indices); negative ones count from the end.
// Additions are made in index order without atomics, in parallel over what they are added to, so results do not depend
// on the number of threads.
#pragma once

#include <cstdint>

#include "allocator/stream.h"
#include "kernels/elementwise.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Throws IndexError `[op] what 300 at position (0, 17) is outside [0, 256)` of the first index, in row-major order,
/// outside [lowest, limit). A GPU is not waited for: it takes such an index for none, reading zero and writing nothing,
/// and the next synchronisation throws. Nothing is found on sim. `op` and `what` live as long as the program.
void check_indices(Stream stream, const char* op, const char* what, const View& index, std::int64_t limit,
                   std::int64_t lowest = 0);

/// out[..., i, ...] = x[..., index[i], ...] along `dim`; index is one-dimensional.
void index_select(Stream stream, const View& out, const View& x, int dim, const View& index);
/// out[..., index[i], ...] += x[..., i, ...] along `dim`.
void index_add(Stream stream, const View& out, int dim, const View& index, const View& x);
/// out[i, j, ...] = x[i, index[i, j, ...], ...] along `dim`; out and index have one shape.
void gather(Stream stream, const View& out, const View& x, int dim, const View& index);
/// out[i, index[i, j, ...], ...] = x[i, j, ...]; of equal indices the last wins.
void scatter(Stream stream, const View& out, int dim, const View& index, const View& x);
/// out[i, index[i, j, ...], ...] becomes op of itself and x[i, j, ...], one j after another, where op is add, mul,
/// maximum or minimum (ValueError). Half types round after each operation; index_add and embedding_backward round once.
void scatter_reduce(Stream stream, BinaryOp op, const View& out, int dim, const View& index, const View& x);
/// out[i, :] = table[index[i], :]; index of any shape, table (V, C), out (index.shape, C).
void embedding(Stream stream, const View& out, const View& table, const View& index);
/// dtable[index[i], :] += grad[i, :], rows equal to `padding` skipped (-1: none).
void embedding_backward(Stream stream, const View& dtable, const View& grad, const View& index, std::int64_t padding);

}  // namespace poolgrad::kernels
