// The commands of the laboratory. Each lives in the file of its name.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "examples/support/console.h"

namespace poolgrad::examples {

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
