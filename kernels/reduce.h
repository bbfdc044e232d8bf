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

/// Reduces the dimensions in which out.shape is 1 and x.shape is not (out keeps the rank of x). An empty reduction
/// gives 0 for sum, NaN for mean, 1 for product, -inf / +inf for maximum / minimum. Half types accumulate in f32, f32
/// in f32 by fixed-size blocks combined pairwise, integers in i64. any and all write bool. NaN propagates.
void reduce(Stream stream, ReduceOp op, const View& out, const View& x);
/// out (i64) is the first index of the largest (or smallest) element along the last dimension of x, which is not empty.
void argmax(Stream stream, const View& out, const View& x);
void argmin(Stream stream, const View& out, const View& x);
/// out (i64) is where the elements of the last dimension of x stand in order, smallest first or, `descending`, largest
/// first; NaN is last both ways, and equals stay in the order they have. Where out is shorter than x along that
/// dimension, it is the beginning of that.
void argsort(Stream stream, const View& out, const View& x, bool descending);
/// Inclusive running sum along the last dimension; `reverse` runs from the end. Integers and bools add up in i64, which
/// `out` should be then.
void cumulative_sum(Stream stream, const View& out, const View& x, bool reverse);
/// The sum of squares of all elements of all views, squared and added in f64, added to *sum (a one-element f64 view).
void add_sums_of_squares(Stream stream, const View& sum, std::span<const View> all);
inline void add_sum_of_squares(Stream stream, const View& sum, const View& x) {
  add_sums_of_squares(stream, sum, {&x, 1});
}

}  // namespace poolgrad::kernels
