// The real CachingAllocator, on a simulated device.
#pragma once

#include <memory>

#include "allocator/caching_allocator.h"
#include "allocator/replay/policy.h"

namespace poolgrad {

std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context);
/// The same with other settings; the budget is min(context.capacity, config.budget).
std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context, const AllocatorConfig& config);

}  // namespace poolgrad
