// A comparison for people and for programs.
#pragma once

#include <string>

#include "examples/lab/comparison.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

/// The table of one workload: a line for each policy.
std::string workload_text(const Comparison& comparison, std::size_t row);
/// Smallest capacities and utilisations of all, averages and worst cases, device time by capacity, the
/// best other online policy, the goals.
std::string summary_text(const Comparison& comparison);

Json to_json(const Comparison& comparison);

}  // namespace poolgrad::examples
