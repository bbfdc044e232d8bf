// What the kernels of a few training steps take: train --profile.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Calls of one kind, in all steps.
struct ProfileRow {
  std::string name;
  std::int64_t calls = 0;
  double nanoseconds = 0, bytes = 0, operations = 0;
  double least_nanoseconds = 0;  // at the ceiling that binds each call; 0 where ceilings are not known
};

struct StepProfile {
  std::int64_t steps = 0;
  double nanoseconds = 0;           // of the steps, with what is between kernels
  std::vector<ProfileRow> kernels;  // the longest first
  std::vector<ProfileRow> scopes;   // the same time by the part of the program, numbers as "*"
  double most_operations = 0;       // a second: the largest product that is quickly measured; 0: no memory for it
  double most_bytes = 0;            // a second: a copy
  std::string trace;                // Chrome's JSON: kernels above the pool's memory
};

/// Trains two steps, and then `steps` with clocks. Throws what train() throws, and ValueError on a simulated device.
StepProfile profile_steps(const TrainOptions& options, std::int64_t steps = 3);

std::string profile_text(const StepProfile& profile);

/// Prints the table, and writes options.profile_trace where it is given.
void profile(const TrainOptions& options, std::ostream& out);

}  // namespace poolgrad::examples
