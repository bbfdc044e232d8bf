// Reductions and searches with a fixed order: results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "allocator/stream.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

enum class ReduceOp : std::uint8_t { sum, mean, product, maximum, minimum, any, all };

std::string_view to_string(ReduceOp op);

/// Reduces the dimensions with size 1 in out.shape and another size in x.shape (out keeps the rank of x). An empty
/// reduction gives 0 for sum, NaN for mean, 1 for product, -inf / +inf for maximum / minimum. Half types accumulate in
/// f32, f32 in f32 by fixed-size blocks combined pairwise, integers in i64. any and all write bool. NaN propagates.
void reduce(Stream stream, ReduceOp op, const View& out, const View& x);
/// out (i64) is the first index of the largest (or smallest) element along the last dimension of x, which must not be
/// empty.
void argmax(Stream stream, const View& out, const View& x);
void argmin(Stream stream, const View& out, const View& x);
/// out (i64) holds the indices that sort the last dimension of x, ascending or `descending`. NaN is last in both
/// directions; the sort is stable. If out is shorter than x along that dimension, it holds the first entries.
void argsort(Stream stream, const View& out, const View& x, bool descending);
/// Inclusive running sum along the last dimension; `reverse` runs from the end. Integers and bools add up in i64, so
/// `out` should be i64 for them.
void cumulative_sum(Stream stream, const View& out, const View& x, bool reverse);
/// Squares and sums all elements of all views in f64, and adds the total to *sum (a one-element f64 view).
void add_sums_of_squares(Stream stream, const View& sum, std::span<const View> all);
inline void add_sum_of_squares(Stream stream, const View& sum, const View& x) {
  add_sums_of_squares(stream, sum, {&x, 1});
}

}  // namespace poolgrad::kernels
