// What a command of the laboratory works on: a trace in a file, or a workload of the zoo.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/replay/workload.h"
#include "allocator/trace/trace.h"

namespace poolgrad::examples {

/// "zoo:NAME", or the path of a trace in any format that load_trace() reads. Throws ValueError for a name that the zoo
/// does not know and FileError for a file that is none.
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
