// Ctrl-C as a request to stop cleanly.
#pragma once

namespace poolgrad::examples {

/// While alive, the first SIGINT or SIGTERM only sets a flag; a second one ends the program as usual.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
};

}  // namespace poolgrad::examples
