// Which kernels have run: how many passes an operator makes over memory is how many it launches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::emulation {

/// Notes the operator of each kernel that runs on an emulated device while it lives, in that order; one at a time.
/// Kernels run late: who asks has waited for the device.
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
