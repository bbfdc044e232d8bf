// Work worth recording: real operators on a pool.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/device.h"

namespace poolgrad::examples {

struct RecordedWork {
  std::string size;  // "small", "default", "large"
  std::int64_t steps = 1;
  Device device;
  CachingAllocator& pool;
};

/// "train": steps of the model of examples/train on made-up text. "attention": forward and backward of one attention
/// layer, causal and windowed in turn, at growing lengths. "generate": text from the model, a byte per step, with keys
/// and values kept.
const std::vector<std::string>& recorded_workloads();

/// Calls `done` after each step. Throws the errors of poolgrad.
void perform(const std::string& workload, const RecordedWork& work, const std::function<void(std::int64_t)>& done);

}  // namespace poolgrad::examples
