// How a set of numbers is written so that they align: NumPy's rules. Private to printing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/dtype.h"

namespace poolgrad {

/// Writes one value of the column.
using NumberWriter = std::function<std::string(double)>;

/// A writer for floating values of `dtype`, all of one width: the shortest digits that identify each value among those
/// of its dtype, at most `precision` of them after the point; scientific where magnitudes are large, tiny or spread
/// over more than three decades.
NumberWriter float_writer(const std::vector<double>& values, DType dtype, int precision);

}  // namespace poolgrad
