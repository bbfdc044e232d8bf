// The laboratory's command line, callable more than once in a process, and its commands.
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "allocator/replay/workload.h"
#include "allocator/trace/trace.h"
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

/// Before the work that ends in the file `output`: throws ValueError where it is one of the inputs, names or files, and
/// FileError where it cannot be written.
void check_output(const std::string& command, const std::string& output, const std::vector<std::string>& inputs = {});
/// Adds --latency, the name or file of a table.
void add_latency(CLI::App& command, std::string& latency);
/// For the help of commands that take policies: each with its parameters.
std::string policy_help();

// --- what commands work on: a trace in a file, or a workload of the zoo

/// "zoo:NAME", or the path of a trace in any format that load_trace() reads. Throws ValueError for a name that the zoo
/// does not know and FileError for a file that is none, or in which nothing was allocated.
Workload read_workload(const std::string& source);

/// The same as a trace. A workload of the zoo has no addresses of its own: it is placed by place().
Trace read_trace(const std::string& source);

/// Runs the workload through poolgrad's pool on a simulated device of `capacity` bytes (0: more than it can need),
/// recording. Ends at the first allocation that fails.
Trace place(const Workload& workload, std::size_t capacity = 0);

/// "zoo:NAME" -> "NAME", a path -> its stem.
std::string source_name(const std::string& source);

/// The .pgt files of the folder of recordings, by name; none where there is no such folder. POOLGRAD_RECORDINGS
/// overrides the folder that the build knows.
std::vector<std::string> recordings();

}  // namespace poolgrad::examples
