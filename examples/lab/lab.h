// The lab's command line, reentrant within a process, and its commands.
#pragma once

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "allocator/lab/replay/workload.h"
#include "allocator/trace/trace.h"
#include "examples/support/console.h"

namespace CLI {
class App;
}

namespace poolgrad::examples {

/// Runs one command; returns its exit code (see ExitCode). Results go to `out`, with a live line if `live`; errors, one
/// sentence each, to `errors`.
int run_lab(int argc, const char* const* argv, std::ostream& out, std::ostream& errors, bool live = false);

struct Command {
  CLI::App* app;                     // parsed() if the command was given
  std::function<int(Console&)> run;  // returns an ExitCode; throws the errors of poolgrad
};

Command add_record(CLI::App& lab);
Command add_replay(CLI::App& lab);
Command add_compare(CLI::App& lab);
Command add_report(CLI::App& lab);
Command add_demo_oom(CLI::App& lab);
Command add_export(CLI::App& lab);
Command add_list(CLI::App& lab);

/// Checks the output file before the work: throws ValueError if it is one of the inputs (names or files), and FileError
/// if it cannot be written.
void check_output(const std::string& command, const std::string& output, const std::vector<std::string>& inputs = {});
/// Adds --latency, the name or file of a table.
void add_latency(CLI::App& command, std::string& latency);
/// Help text for commands with policies: each policy with its parameters.
std::string policy_help();

// --- inputs of commands: a trace file or a workload of the zoo

/// The part of a source that a command reads.
struct Selection {
  std::optional<unsigned> device = {};  // index
  bool with_failed = false;             // replays failed requests too
};
/// Adds --device, and --with-failed to a command that `replays`.
void add_selection(CLI::App& command, Selection& selection, bool replays = true);

/// Reads "zoo:NAME", or a trace in any format of load_traces(): one workload for each device with events or blocks.
/// Throws ValueError for an unknown name of the zoo or a device that the file does not hold, and FileError for a file
/// that is no trace or has no allocations.
std::vector<Workload> read_workloads(const std::string& source, const Selection& selection = {});

/// The same as one trace: throws ValueError if several devices are selected. A workload of the zoo has no addresses:
/// place() assigns them.
Trace read_trace(const std::string& source, const Selection& selection = {});

/// Runs and records the workload on poolgrad's pool, on a simulated device of `capacity` bytes (0: more than it can
/// need). Ends at the first failed allocation.
Trace place(const Workload& workload, std::size_t capacity = 0);

/// "zoo:NAME" -> "NAME", a path -> its stem.
std::string source_name(const std::string& source);

/// The .pgt files of the recordings folder, by name; none if there is no such folder. POOLGRAD_RECORDINGS overrides the
/// folder of the build.
std::vector<std::string> recordings();

}  // namespace poolgrad::examples
