#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/attention/mma.h"

namespace poolgrad {

/// While alive, attention may or may not use tensor cores.
class MmaAllowed {
 public:
  explicit MmaAllowed(bool allowed = true) { kernels::allow_mma(allowed); }
  ~MmaAllowed() { kernels::allow_mma(before_); }
  MmaAllowed(const MmaAllowed&) = delete;
  MmaAllowed& operator=(const MmaAllowed&) = delete;

 private:
  bool before_ = kernels::mma_allowed();
};

/// While alive, attention may or may not use warpgroups where they exist.
class WarpgroupsAllowed {
 public:
  explicit WarpgroupsAllowed(bool allowed) { kernels::cuda::allow_warpgroups(allowed); }
  ~WarpgroupsAllowed() { kernels::cuda::allow_warpgroups(before_); }
  WarpgroupsAllowed(const WarpgroupsAllowed&) = delete;
  WarpgroupsAllowed& operator=(const WarpgroupsAllowed&) = delete;

 private:
  bool before_ = kernels::cuda::warpgroups_allowed();
};

}  // namespace poolgrad
