// A planned run, really run: the program `train` in a process of its own, whose pool nobody has used before.
#pragma once

#include <cstdint>
#include <string>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Bytes are those of the pool's statistics.
struct MeasuredRun {
  std::string failure;      // why there is nothing below; empty where it ran
  double milliseconds = 0;  // median of all steps but the first, which finds the pool empty
  std::uint64_t peak_live = 0, peak_reserved = 0;
};

/// The program beside the one that runs. Throws FileError where there is none.
std::string train_program();

/// Trains as `options` say. What fails is an answer; it ends with the program that asked.
MeasuredRun measure_run(const std::string& program, const TrainOptions& options);

}  // namespace poolgrad::examples
