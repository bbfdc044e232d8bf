// Log of launched kernels, to count an operator's passes over memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::emulation {

/// Records the operator of each kernel that runs on an emulated device during its lifetime, in order. Only one log may
/// exist at a time. Kernels run late: synchronize before reading the log.
class LaunchLog {
 public:
  LaunchLog();
  ~LaunchLog();
  LaunchLog(const LaunchLog&) = delete;
  LaunchLog& operator=(const LaunchLog&) = delete;

  std::vector<std::string> operators() const;
};

/// For run_grid().
void note_launch(std::string_view op);

}  // namespace poolgrad::emulation
