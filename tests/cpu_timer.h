// Tests that a cost grows linearly measure the processor's time: other processes of the machine do not change it.
#pragma once

#include <ctime>

namespace poolgrad {

class CpuTimer {
 public:
  /// Processor time of all threads of this process since construction.
  double seconds() const { return static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t begin_ = std::clock();
};

}  // namespace poolgrad
