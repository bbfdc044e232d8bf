// Writes a trace for chrome://tracing and ui.perfetto.dev: one process for the device, with counters "memory"
// (allocated and cached bytes, which together with pending ones are the reserved bytes), "reserved" and one counter for
// each category that occurs, at most one sample a microsecond; instant events for rungs of the emergency ladder and for
// failed allocations; duration events for steps. Bytes of allocations are those asked for.
#pragma once

#include <string>

#include "allocator/trace/trace_window.h"

namespace poolgrad {

std::string encode_chrome_trace(const WindowedTrace& trace);

}  // namespace poolgrad
