// train --profile: time by kernel over a few training steps.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Calls of one kind, over all steps.
struct ProfileRow {
  std::string name;
  std::int64_t calls = 0;
  double nanoseconds = 0, bytes = 0, operations = 0;
  double least_nanoseconds = 0;  // lower bound by the limiting peak rate of each call; 0 if unknown
};

struct StepProfile {
  std::int64_t steps = 0;
  double nanoseconds = 0;           // of the steps, including time between kernels
  std::vector<ProfileRow> kernels;  // longest first
  std::vector<ProfileRow> scopes;   // the same time by scope, numbers replaced by "*"
  double most_operations = 0;       // per second, of the largest product that is quick to measure; 0: no memory for it
  double most_bytes = 0;            // per second, of a copy
  std::string trace;                // Chrome's JSON: kernels above the pool's memory
};

/// Trains two steps, and then `steps` with timers. Throws as train() does, and ValueError on a simulated device.
StepProfile profile_steps(const TrainOptions& options, std::int64_t steps = 3);

std::string profile_text(const StepProfile& profile);

/// Prints the table, and writes options.profile_trace if given.
void profile(const TrainOptions& options, std::ostream& out);

}  // namespace poolgrad::examples
