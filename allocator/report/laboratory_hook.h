// The advice of the laboratory (allocator/lab) for a failed allocation. A program that links the laboratory registers
// it before main(); nothing else in a pool knows the laboratory.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace poolgrad {

struct AllocationRequest;
struct AllocatorConfig;
struct Trace;

/// checked_advice() of allocator/lab/advice.h.
using LaboratoryHook = std::vector<std::string> (*)(const Trace& trace, const AllocatorConfig& config,
                                                    std::size_t capacity, const AllocationRequest& request);

/// Null in a program without the laboratory.
inline constinit LaboratoryHook laboratory_hook = nullptr;

}  // namespace poolgrad
