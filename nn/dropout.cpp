#include "nn/dropout.h"

#include "allocator/error.h"
#include "autograd/dropout.h"

namespace poolgrad::nn {

Dropout::Dropout(double p, Generator& generator) : p_(p), generator_(&generator) {
  if (!(p >= 0.0 && p < 1.0)) throw ValueError("[dropout] p must be in [0, 1), but is " + std::to_string(p));
}

Tensor Dropout::forward(const Tensor& x) { return training() && p_ > 0.0 ? dropout(x, p_, *generator_) : x; }

}  // namespace poolgrad::nn
