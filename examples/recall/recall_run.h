// examples/recall, callable from tests.
#pragma once

#include <iosfwd>
#include <vector>

#include "examples/recall/recall_options.h"
#include "examples/recall/recall_result.h"

namespace poolgrad::examples {

/// Trains and tests each contender with the same sequences, initial weights and budget, printing to `out` (with a live
/// line where `live`), and writes the report files. Ctrl-C ends the training, then tests. Throws the errors of
/// poolgrad.
std::vector<RecallResult> run_recall(const RecallOptions& options, std::ostream& out, bool live = false);

}  // namespace poolgrad::examples
