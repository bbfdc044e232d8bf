// Functors for parallel loops over the elements of strided views, host and device alike: the index arithmetic is
// View's and the operation is one of functors.h. The plain form that faster CPU paths are tested against.
#pragma once

#include <cstdint>

#include "kernels/definition/host_device.h"
#include "kernels/view.h"

namespace poolgrad::kernels {

/// out[i] = Op(x[i]) for the element with row-major index i; both views have the same shape and elements of type T.
template <class Op, class T>
struct PointwiseUnary {
  View out, x;
  T a{}, b{};

  POOLGRAD_HD void operator()(std::int64_t i) const {
    out.as<T>()[out.offset(i)] = Op::template value<T>(x.as<T>()[x.offset(i)], a, b);
  }
};

}  // namespace poolgrad::kernels
