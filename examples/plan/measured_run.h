// Measures a planned run: the program `train` in its own process, with a fresh pool.
#pragma once

#include <cstdint>
#include <string>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// Bytes are from the pool's statistics.
struct MeasuredRun {
  std::string failure;      // why the fields below are empty; empty on success
  double milliseconds = 0;  // median of all steps but the first, which starts with an empty pool
  std::uint64_t peak_live = 0, peak_reserved = 0;
};

/// The program beside the running one. Throws FileError if there is none.
std::string train_program();

/// Trains with `options`. A failure is a result. The child ends with this program.
MeasuredRun measure_run(const std::string& program, const TrainOptions& options);

}  // namespace poolgrad::examples
