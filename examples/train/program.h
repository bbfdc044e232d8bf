// The body of main() of two programs: `train`, which is built soon, and `train_watched`, which also knows how to look
// at a run.
#pragma once

#include <functional>
#include <iosfwd>

#include "examples/support/train.h"

namespace poolgrad::examples {

/// What looks at runs.
struct TrainTools {
  std::function<RunWatcher(const TrainOptions&)> page;  // --html
  std::function<void(const TrainOptions&, std::ostream& out)> profile;
};

/// Reads the command line and trains. Without tools, a run that asks for one becomes that of the program train_watched
/// beside this one. Returns the exit code.
int train_program(int argc, char** argv, const TrainTools* tools = nullptr);

}  // namespace poolgrad::examples
