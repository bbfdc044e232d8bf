// Printing like NumPy, and comparison for tests.
#pragma once

#include <iosfwd>
#include <string>

#include "tensor/tensor.h"

namespace poolgrad {

struct PrintOptions {
  int precision = 4;
  int threshold = 1000;  // more elements than this are summarised
  int edge_items = 3;    // shown at each end of a summarised dimension
  int line_width = 100;
};

/// NumPy's layout: aligned columns, "..." for long dimensions, then dtype and device where they are not f32 and cpu.
std::string to_string(const Tensor& tensor, const PrintOptions& options = {});
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

/// Same shape and |a - b| <= absolute + relative * |b| everywhere; NaN is equal only to NaN when `equal_nan`. Mixed
/// dtypes compare in f64.
bool all_close(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8,
               bool equal_nan = false);
/// Same shape, dtype and bits.
bool bit_equal(const Tensor& a, const Tensor& b);
/// max |a - b|; NaN where either has one.
double max_difference(const Tensor& a, const Tensor& b);
/// ||a - b|| / ||b|| in f64; NaN never passes a comparison.
double relative_error(const Tensor& a, const Tensor& b);

}  // namespace poolgrad
