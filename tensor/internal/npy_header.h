// The header of an .npy file: a Python dictionary with 'descr', 'fortran_order' and 'shape'.
#pragma once

#include <string>
#include <string_view>

#include "kernels/dtype.h"
#include "tensor/shape.h"

namespace poolgrad {

struct NpyHeader {
  DType dtype = DType::f32;
  bool fortran_order = false;
  Shape shape;
};

/// Reads exactly what NumPy writes: the three keys once each, in any order. Throws ValueError with the reason.
NpyHeader parse_npy_header(std::string_view text);
/// Magic, version 1.0, length and dictionary, padded with spaces so that the data begins at a multiple of 64. Throws
/// DTypeError for bf16.
std::string npy_header(const NpyHeader& header);

}  // namespace poolgrad
