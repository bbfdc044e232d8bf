// Whether operators of this thread record gradients. A flag on this floor, because in-place writes ask it too.
#pragma once

namespace poolgrad {

namespace detail {
inline thread_local constinit bool grad_mode = true;
}

/// True unless a NoGradGuard is the innermost guard alive on this thread.
inline bool grad_enabled() { return detail::grad_mode; }

/// Sets grad mode on this thread for as long as it lives; guards nest.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : previous_(detail::grad_mode) { detail::grad_mode = enabled; }
  ~GradModeGuard() { detail::grad_mode = previous_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};

/// While alive, operators record nothing and in-place writes to tensors that require grad are allowed.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// Turns recording on again inside a NoGradGuard.
class EnableGradGuard : public GradModeGuard {
 public:
  EnableGradGuard() : GradModeGuard(true) {}
};

}  // namespace poolgrad
