// Policies that know the whole workload before it begins.
#pragma once

#include <memory>

#include "allocator/replay/policy.h"

namespace poolgrad {

/// Holds exactly the live requested bytes: what no allocator can do better than.
std::unique_ptr<Policy> make_lower_bound(const PolicyContext& context);
/// All blocks at fixed offsets of one slab, packed before the start. A block that takes over bytes which another stream
/// used last makes its stream wait.
std::unique_ptr<Policy> make_planned(const PolicyContext& context);

}  // namespace poolgrad
