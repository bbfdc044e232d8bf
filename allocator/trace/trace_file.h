// Reading and writing traces, whatever the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/trace.h"
#include "allocator/trace/trace_window.h"

namespace poolgrad {

enum class TraceFormat : std::uint8_t {
  pgt,             // our own: everything, see pgt.h
  pytorch_pickle,  // memory snapshot, see pytorch_snapshot_writer.h
  pytorch_json,    // the same as JSON
  rmm_csv,         // see rmm_csv.h
  chrome           // see chrome_trace.h; cannot be read back
};

/// "pgt", "pickle", "json", "csv", "chrome".
std::string_view to_string(TraceFormat format);
/// Throws ValueError that lists the known names.
TraceFormat parse_trace_format(std::string_view name);

/// By content, never by name. Throws FileError for a file that is none of them.
TraceFormat format_of(const std::string& path);

/// One trace for each device in the file. Throws FileError.
std::vector<Trace> load_traces(const std::string& path);
/// The first of them that has any event or block; an empty trace where there is none.
Trace load_trace(const std::string& path);

/// Writes the part of the trace that `window` selects. The file appears whole or not at all. Returns a warning for the
/// user, "" if there is none: events that contradict each other and are left out, more events than viewers show.
/// Throws FileError.
std::string save_trace(const std::string& path, const Trace& trace, TraceFormat format, const TraceWindow& window = {});

}  // namespace poolgrad
