#pragma once

#include "kernels/attention.h"

namespace poolgrad {

/// Attention may use tensor cores, or may not, while it is alive.
class MmaAllowed {
 public:
  explicit MmaAllowed(bool allowed = true) { kernels::allow_mma(allowed); }
  ~MmaAllowed() { kernels::allow_mma(before_); }
  MmaAllowed(const MmaAllowed&) = delete;
  MmaAllowed& operator=(const MmaAllowed&) = delete;

 private:
  bool before_ = kernels::mma_allowed();
};

}  // namespace poolgrad
