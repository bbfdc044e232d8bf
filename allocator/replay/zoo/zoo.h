// The trace zoo: workloads whose shapes are known to trouble allocators, generated from code, so that they are the same
// everywhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "allocator/replay/workload.h"

namespace poolgrad {

/// Names and one-line descriptions, in a fixed order.
struct ZooEntry {
  std::string_view name;
  std::string_view description;
};
const std::vector<ZooEntry>& trace_zoo();

/// Generates one of them. Throws ValueError that lists the known names.
Workload zoo_workload(std::string_view name);

}  // namespace poolgrad
