// The laboratory's command line, callable more than once in a process.
#pragma once

#include <iosfwd>

namespace poolgrad::examples {

/// Runs one command; returns its exit code (see ExitCode). Answers go to `out`, with a live line where `live`; errors,
/// one sentence each, to `errors`.
int run_lab(int argc, const char* const* argv, std::ostream& out, std::ostream& errors, bool live = false);

}  // namespace poolgrad::examples
