// Traces as files of any format: .pgt (allocator/trace/pgt.h), PyTorch's memory snapshots, RMM's logs and Chrome's
// traces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/lab/formats/trace_window.h"
#include "allocator/trace/pgt.h"

namespace poolgrad {

// --- files of any format

enum class TraceFormat : std::uint8_t {
  pgt,             // our own, lossless
  pytorch_pickle,  // memory snapshot
  pytorch_json,    // the same as JSON
  csv,             // written as RMM does
  chrome           // cannot be read back
};

/// "pgt", "pickle", "json", "csv", "chrome".
std::string_view to_string(TraceFormat format);
/// Throws ValueError that lists the known names.
TraceFormat parse_trace_format(std::string_view name);

/// The content of a file, or its first `most` bytes. Throws FileError for a file that is not regular, cannot be read,
/// or does not fit into memory.
std::string read_whole_file(const std::string& path, std::uintmax_t most = UINTMAX_MAX);

/// Detects the format by content, never by name. Throws FileError for other files.
TraceFormat format_of(const std::string& path);

/// One trace for each device in the file. Throws FileError, also for an inconsistent trace: blocks that overlap or are
/// freed twice, ranges beyond 2^63 bytes, times beyond 2^53 microseconds.
std::vector<Trace> load_traces(const std::string& path);
/// The first trace with an event or a block; an empty trace if there is none.
Trace load_trace(const std::string& path);

/// Writes the part of the trace that `window` selects, atomically. Returns a warning for the user, or "": contradictory
/// events that are left out, more events than viewers show. Throws FileError.
std::string save_trace(const std::string& path, const Trace& trace, TraceFormat format, const TraceWindow& window = {});

// --- bytes; `path` is for error messages

// Writes traces as PyTorch memory snapshots, for the public memory viewer and for torch/cuda/_memory_viz.py.
//
// Mapping of a trace:
//   committed pages     `segments`, one for each run of committed addresses inside a window, with is_expandable; their
//                       stream is always 0, since a window serves all streams (and viewers join neighbors of one
//                       stream only)
//   segment_map/unmap   entries of the same name, allocate is `alloc`, out_of_memory is `oom`
//   scope, location     `frames`, innermost first: the location, then the names of the scope in file "scope", line 0
//   category            `category` of each entry and block
//   step                `external_annotations` named "step 0", "step 1", ...
//   settings            `allocator_settings`: the text under "poolgrad on DEVICE", and PyTorch's keys with equal
//                       meaning; `trace_alloc_overflowed` is true if events are lost
// The format has no place for reclaim stages and stream order. decode_pytorch_snapshot() skips steps and settings. Each
// device's entries end with a `snapshot` entry of category "unknown", without which older viewers fail on files that
// use other categories.

enum class SnapshotEncoding : std::uint8_t {
  pickle,  // protocol 2, plain data only
  json
};

/// One trace for each device index. Throws ValueError if two have the same index.
std::string encode_pytorch_snapshot(std::span<const WindowedTrace> traces, SnapshotEncoding encoding);

/// Reads pickles of protocols 2 to 5 as PyTorch and Python write them, and JSON. Returns one trace for each device with
/// segments or entries, in order of device indices. Reads a plain list as the segments of an old snapshot.
///
/// A segment becomes a window; segment_alloc and segment_map both become segment_map. Numbers allocations in order:
/// first the blocks that existed before the first entry (freed without an allocation, or live at the end without an
/// entry), then one for each alloc. A free gets the number, category and scope of its allocation, and its size if
/// known. A gap between free_requested and free_completed stays: the block waited for another stream. `location` is the
/// innermost frame below the unwinder, preferring a Python file. `user_metadata` and `annotate` entries extend the
/// scope of their allocation; a private pool (`pool_id`) is its outermost part, "pool 0,1". A free_completed without a
/// request gets one. Skips entries with unknown actions. `lost` is 1 if the snapshot reports an overflow of its ring.
/// The device is cuda:N, and times start at the first entry.
///
/// Throws FileError that names the byte, or the element (`device_traces[0][17]`), at which the file is malformed.
std::vector<Trace> decode_pytorch_snapshot(std::string_view bytes, const std::string& path);

/// Writes a log in the format of RMM's logging_resource_adaptor: `Thread,Time,Action,Pointer,Size,Stream`. Actions are
/// `allocate`, `allocate failure` and `free` (at the time of the request). Times are hours, minutes, seconds and
/// microseconds of the day (UTC). The log is complete: it starts with allocations of the blocks that existed before. A
/// trace has no threads, so that column is 1.
std::string encode_rmm_csv(const WindowedTrace& trace);

/// Reads RMM's log. The device is cuda:0. Frees complete at once. A clock that runs backwards by more than half a day
/// has passed midnight; by less, threads were logged out of order. The log has no pages: all its addresses, in units of
/// 2 MiB, are committed from the start.
///
/// Also reads a plain log with the header `time,action,id,size,stream`: microseconds, `alloc` or `free`, and whole
/// numbers. It has no addresses, so each allocation gets its own, in order. An id may name a later allocation after its
/// free. Throws FileError that names the line.
Trace decode_csv(std::string_view bytes, const std::string& path);

/// Writes a trace for chrome://tracing and ui.perfetto.dev: one process for the device. Counters, at most one sample
/// per microsecond: "memory" (allocated and cached bytes, which with pending ones sum to reserved bytes), "reserved",
/// and one for each category that occurs. Instant events for stages of the reclaim policy and failed allocations;
/// duration events for steps. Allocation sizes are requested bytes.
std::string encode_chrome_trace(const WindowedTrace& trace);

}  // namespace poolgrad
