// The body of main() of two programs: `train`, which builds quickly, and `train_watched`, which also has pages and
// profiles.
#pragma once

#include <functional>
#include <iosfwd>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// The tools of train_watched.
struct TrainTools {
  std::function<void(TrainOptions& options)> page;  // sets `reported` to write --html
  std::function<void(const TrainOptions&, std::ostream& out)> profile;
};

/// Reads the command line and trains. Without tools, a run that needs them executes the program train_watched beside
/// this one. Returns the exit code.
int train_program(int argc, char** argv, const TrainTools* tools = nullptr);

}  // namespace poolgrad::examples
