#pragma once

#include "kernels/parallel.h"

namespace poolgrad {

/// While alive, kernels divide their work for this many threads.
class Threads {
 public:
  explicit Threads(int count) { kernels::set_num_threads(count); }
  ~Threads() { kernels::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = kernels::num_threads();
};

}  // namespace poolgrad
