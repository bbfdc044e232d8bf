// Gathers and scatters. Indices are i64 and already checked (see check_indices); negative ones count from the end.
// Additions run in index order without atomics, in parallel over the destinations. Results therefore do not depend on
// the number of threads.
#pragma once

#include <cstdint>

#include "allocator/stream.h"
#include "kernels/elementwise.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// Throws IndexError `[op] what 300 at position (0, 17) is outside [0, 256)` for the first index, in row-major order,
/// outside [lowest, limit). On a GPU it does not wait: the next synchronization throws. Until then a bad index reads
/// zero and writes nothing. A simulated device checks nothing. `op` and `what` must have static storage duration.
void check_indices(Stream stream, const char* op, const char* what, const View& index, std::int64_t limit,
                   std::int64_t lowest = 0);

/// out[..., i, ...] = x[..., index[i], ...] along `dim`; index is one-dimensional.
void index_select(Stream stream, const View& out, const View& x, int dim, const View& index);
/// out[..., index[i], ...] += x[..., i, ...] along `dim`.
void index_add(Stream stream, const View& out, int dim, const View& index, const View& x);
/// out[i, j, ...] = x[i, index[i, j, ...], ...] along `dim`; out and index have one shape.
void gather(Stream stream, const View& out, const View& x, int dim, const View& index);
/// out[i, index[i, j, ...], ...] = x[i, j, ...]; among equal indices the last wins.
void scatter(Stream stream, const View& out, int dim, const View& index, const View& x);
/// out[i, index[i, j, ...], ...] = op(itself, x[i, j, ...]), for each j in order. op is add, mul, maximum or minimum;
/// any other throws ValueError. Half types round after each operation; index_add and embedding_backward round once.
void scatter_reduce(Stream stream, BinaryOp op, const View& out, int dim, const View& index, const View& x);
/// out[i, :] = table[index[i], :]; index of any shape, table (V, C), out (index.shape, C).
void embedding(Stream stream, const View& out, const View& table, const View& index);
/// dtable[index[i], :] += grad[i, :]. Skips rows equal to `padding` (-1: none).
void embedding_backward(Stream stream, const View& dtable, const View& grad, const View& index, std::int64_t padding);

}  // namespace poolgrad::kernels
