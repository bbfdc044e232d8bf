// Tests of linear cost measure processor time, because other processes on the machine do not change it.
#pragma once

#include <ctime>

namespace poolgrad {

class CpuTimer {
 public:
  /// Returns the processor time of all threads of this process since construction, in seconds.
  double seconds() const { return static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC; }

 private:
  std::clock_t begin_ = std::clock();
};

}  // namespace poolgrad
