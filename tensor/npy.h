// NumPy's .npy files, versions 1.0, 2.0 and 3.0, little-endian, both memory orders. Files are untrusted: sizes are
// checked against the file before any allocation.
#pragma once

#include <string>

#include "tensor/tensor.h"

namespace poolgrad {

/// Supports f2 f4 f8 i4 i8 u1 b1. Throws FileError with path and offset.
Tensor load_npy(const std::string& path, CallSite = {});
/// Writes version 1.0, C order. Throws DTypeError for bf16, which npy lacks.
void save_npy(const std::string& path, const Tensor& tensor, CallSite = {});

}  // namespace poolgrad
