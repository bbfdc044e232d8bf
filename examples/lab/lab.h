// The laboratory's command line, callable more than once in a process, and its commands.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "examples/support/console.h"

namespace CLI {
class App;
}

namespace poolgrad::examples {

/// Runs one command; returns its exit code (see ExitCode). Answers go to `out`, with a live line where `live`; errors,
/// one sentence each, to `errors`.
int run_lab(int argc, const char* const* argv, std::ostream& out, std::ostream& errors, bool live = false);

struct Command {
  CLI::App* app;                     // parsed: the command was given
  std::function<int(Console&)> run;  // returns an ExitCode; throws the errors of poolgrad
};

Command add_record(CLI::App& lab);
Command add_replay(CLI::App& lab);
Command add_compare(CLI::App& lab);
Command add_report(CLI::App& lab);
Command add_demo_oom(CLI::App& lab);
Command add_export(CLI::App& lab);
Command add_list(CLI::App& lab);

/// For the help of commands that take policies: each with its parameters.
std::string policy_help();

}  // namespace poolgrad::examples
