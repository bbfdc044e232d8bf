// Prints tensors like NumPy.
#pragma once

#include <iosfwd>
#include <string>

#include "tensor/compare.h"  // tests that print tensors also compare them
#include "tensor/tensor.h"

namespace poolgrad {

struct PrintOptions {
  int precision = 4;     // digits after the point
  int threshold = 1000;  // more elements than this are summarized
  int edge_items = 3;    // printed at each end of a summarized dimension, at least 1
  int line_width = 100;
};

/// Returns NumPy's layout: aligned columns, "..." for long dimensions. Then follow the shape of an empty tensor of
/// several dimensions, the dtype unless f32, and the device unless the CPU: "[1 2 3] i64", "[0. 0.] on sim:0". An
/// undefined tensor is "undefined".
std::string to_string(const Tensor& tensor, const PrintOptions& options = {}, CallSite = {});
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);
/// Print the attributes of a tensor: "(2, 3)", "f32", "cuda:0".
std::ostream& operator<<(std::ostream& stream, const Dims& dims);
std::ostream& operator<<(std::ostream& stream, DType dtype);
std::ostream& operator<<(std::ostream& stream, Device device);

}  // namespace poolgrad
