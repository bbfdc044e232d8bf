// Verified advice for a failed allocation: replays the recorded history under other settings and reports those under
// which it succeeds.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// `trace` is the history before `request` failed on a pool with `config` on a device of `capacity` bytes. Tries one
/// setting at a time, and searches for the smallest sufficient budget. Empty if the trace cannot be replayed. Also
/// empty if the replay succeeds under the current settings: then it proves nothing (older events are lost, threads ran
/// in parallel, clients freed memory).
std::vector<std::string> checked_advice(const Trace& trace, const AllocatorConfig& config, std::size_t capacity,
                                        const AllocationRequest& request);

}  // namespace poolgrad
