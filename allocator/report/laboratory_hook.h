// The functions that the laboratory (allocator/lab) lends to a pool. A program that links its library registers them
// before main(); nothing else in allocator/ knows the laboratory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad {

struct AllocationRequest;
struct AllocatorConfig;
struct Trace;

/// All are null in a program without the laboratory.
struct LaboratoryHook {
  /// checked_advice() of allocator/lab/advice.h.
  std::vector<std::string> (*advice)(const Trace& trace, const AllocatorConfig& config, std::size_t capacity,
                                     const AllocationRequest& request) = nullptr;
  /// save_trace() of allocator/lab/formats/trace_file.h, by the name of a format.
  std::string (*save)(const std::string& path, const Trace& trace, std::string_view format) = nullptr;
};

inline constinit LaboratoryHook laboratory_hook;

}  // namespace poolgrad
