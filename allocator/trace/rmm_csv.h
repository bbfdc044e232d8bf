// Logs as RMM's logging_resource_adaptor writes them: `Thread,Time,Action,Pointer,Size,Stream`.
#pragma once

#include <string>
#include <string_view>

#include "allocator/trace/trace.h"
#include "allocator/trace/trace_window.h"

namespace poolgrad {

/// Actions are `allocate`, `allocate failure` and `free` (at the time of the request); times are hours, minutes,
/// seconds and microseconds of the day (UTC). The log stands alone: blocks that were there before are allocated at its
/// start. Threads are not in a trace, so that column is 1.
std::string encode_rmm_csv(const WindowedTrace& trace);

/// The device is cuda:0. Frees complete at once. A clock that runs backwards by more than half a day has passed
/// midnight; by less, threads were logged out of order. The log says nothing of pages: all addresses that occur, in
/// units of 2 MiB, are committed from the beginning. Throws FileError that names the line.
Trace decode_rmm_csv(std::string_view bytes, const std::string& path);

}  // namespace poolgrad
