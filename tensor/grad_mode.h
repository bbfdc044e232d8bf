// Interface of tensor/ to autograd/. The grad mode of a thread is here because in-place writes check it. GradRecord is
// abstract, so that tensor/ never includes autograd/.
#pragma once

#include <memory>
#include <string>

namespace poolgrad {

namespace detail {
inline thread_local constinit bool grad_mode = true;
}

/// Returns whether operators on this thread record gradients. A NoGradGuard as innermost guard turns it off.
inline bool grad_enabled() { return detail::grad_mode; }

/// Sets grad mode on this thread during its lifetime; guards nest.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : previous_(detail::grad_mode) { detail::grad_mode = enabled; }
  ~GradModeGuard() { detail::grad_mode = previous_; }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool previous_;
};

/// During its lifetime operators record nothing, and in-place writes to tensors that require grad are allowed.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// Turns recording on again inside a NoGradGuard.
class EnableGradGuard : public GradModeGuard {
 public:
  EnableGradGuard() : GradModeGuard(true) {}
};

class Tensor;

class GradRecord {
 public:
  virtual ~GradRecord() = default;

  virtual bool requires_grad() const = 0;
  virtual void set_requires_grad(bool value) = 0;
  /// True if no operator made the tensor.
  virtual bool is_leaf() const = 0;
  /// The operator that made it ("matmul"), or "".
  virtual std::string made_by() const = 0;
  /// The accumulated gradient of a leaf, or an undefined tensor.
  virtual Tensor grad() const = 0;
  virtual void set_grad(const Tensor& grad) = 0;
  virtual void backward(const Tensor& self, const Tensor& gradient, bool retain_graph, bool create_graph) = 0;
};

}  // namespace poolgrad

/// Sets `record` to a new leaf record. autograd/ defines it; null in programs without autograd/.
extern "C" [[gnu::weak]] void poolgrad_make_leaf_record(std::shared_ptr<poolgrad::GradRecord>& record);
