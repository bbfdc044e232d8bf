// Advice for an allocation that failed, each line of it proved: what was recorded is replayed under another setting,
// and the line is given only if the allocation then succeeds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// `trace` is the history before `request` failed on a pool with `config` on a device of `capacity` bytes. Settings are
/// tried one at a time; the smallest budget that is enough is searched for. Empty if the replay does not fail under the
/// settings in force either, because then it proves nothing (older events are lost, threads ran side by side, clients
/// gave memory back), or if the trace cannot be replayed.
std::vector<std::string> checked_advice(const Trace& trace, const AllocatorConfig& config, std::size_t capacity,
                                        const AllocationRequest& request);

}  // namespace poolgrad
