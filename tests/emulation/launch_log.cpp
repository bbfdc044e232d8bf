#include "tests/emulation/launch_log.h"

#include <atomic>
#include <mutex>

namespace poolgrad::emulation {
namespace {

struct Launches {
  std::atomic<bool> wanted{false};
  std::mutex mutex;
  std::vector<std::string> operators;
};
Launches& launches() {
  static auto& instance = *new Launches;  // never destroyed: kernels may run after static destruction
  return instance;
}

}  // namespace

LaunchLog::LaunchLog() {
  const std::lock_guard lock(launches().mutex);
  launches().operators.clear();
  launches().wanted = true;
}
LaunchLog::~LaunchLog() { launches().wanted = false; }

std::vector<std::string> LaunchLog::operators() const {
  const std::lock_guard lock(launches().mutex);
  return launches().operators;
}

void note_launch(std::string_view op) {
  if (!launches().wanted) return;
  const std::lock_guard lock(launches().mutex);
  launches().operators.emplace_back(op);
}

}  // namespace poolgrad::emulation
