// Traces as files and bytes: our own format, PyTorch's memory snapshots, RMM's logs and Chrome's traces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/trace.h"
#include "allocator/trace/trace_window.h"

namespace poolgrad {

// --- files of any format

enum class TraceFormat : std::uint8_t {
  pgt,             // our own, lossless
  pytorch_pickle,  // memory snapshot
  pytorch_json,    // the same as JSON
  rmm_csv,
  chrome  // cannot be read back
};

/// "pgt", "pickle", "json", "csv", "chrome".
std::string_view to_string(TraceFormat format);
/// Throws ValueError that lists the known names.
TraceFormat parse_trace_format(std::string_view name);

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

// The binary format of traces, `.pgt`: lossless, a few bytes per event.
//
// Layout. All numbers are little endian; a varint has seven bits a byte, low ones first, and the high bit set in all
// but the last byte; a signed varint is zigzag coded (0, -1, 1, -2, ... as 0, 1, 2, 3, ...); a text is a varint of its
// bytes and then those, UTF-8.
//
//   89 'P' 'G' 'T' 0d 0a 1a 0a      magic: detects transfers that change line ends or cut bit 8
//   u32 version                     1
//   sections, each
//     char[4] name                  in this order, each once: META STRM SCOP LOCA BLKS EVNT, then END with 0 bytes;
//                                   sections with other names are skipped
//     u32 reserved                  0
//     u64 bytes                     of the payload
//     u64 checksum                  of the payload: FNV-1a over its 8-byte words, the last one filled up with 0
//     payload
//   and no bytes after END.
//
//   META  device type u8 (0 cpu, 1 cuda, 2 sim), device index u8, start_us varint, lost varint, settings text
//   STRM  count varint, ids varint
//   SCOP  count varint, texts
//   LOCA  count varint, each: file text, function text, line varint
//   BLKS  count varint, each: address signed varint (from the end of the block before), size varint, state u8,
//         stream varint, epoch varint, window signed varint (difference), and for live and pending blocks
//         number varint, requested varint, category u8, scope varint
//   EVNT  count varint, each event as its difference from a reference: the last event of the same kind, for
//         free_completed the last free_requested, at first all zeros.
//           u8   kind (low four bits) | high four bits of the mask
//           u8   low eight bits of the mask
//           time      signed varint, from the event before
//           for each bit of the mask, lowest first, the difference of that field as a signed varint modulo 2^64:
//           allocation, address, size, ticket, location, scope, stream, slack, category, stage, flags
/// Lossless for any trace with indices in range.
/// `path` is for error texts. Throws FileError that names the offset, for any bytes that encode_pgt() does not make.

inline constexpr std::string_view pgt_magic{"\x89PGT\r\n\x1a\n", 8};

/// Lossless for any trace with indices in range.
std::string encode_pgt(const Trace& trace);
/// Throws FileError that names the offset, for any bytes that encode_pgt() does not make.
Trace decode_pgt(std::string_view bytes, const std::string& path);

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
//   settings            `allocator_settings`: PyTorch's keys, and under "poolgrad", for each device, all fields
//                       without another place
// The format has no place for reclaim stages and stream order. Each device's entries end with a `snapshot` entry of
// category "unknown", without which older viewers fail on files that use other categories.

enum class SnapshotEncoding : std::uint8_t {
  pickle,  // protocol 2, plain data only
  json
};

/// One trace for each device index. Throws ValueError if two have the same index.
std::string encode_pytorch_snapshot(std::span<const WindowedTrace> traces, SnapshotEncoding encoding);
std::string encode_pytorch_snapshot(const Trace& trace, SnapshotEncoding encoding, const TraceWindow& window = {});

/// Reads pickles of protocols 2 to 5 as PyTorch and Python write them, and JSON. Returns one trace for each device with
/// segments or entries, in order of device indices. Reads a plain list as the segments of an old snapshot.
///
/// A segment becomes a window; segment_alloc and segment_map both become segment_map. Numbers allocations in order:
/// first the blocks that existed before the first entry (freed without an allocation, or live at the end without an
/// entry), then one for each alloc. A free gets the number, category and scope of its allocation, and its size if
/// known. A gap between free_requested and free_completed stays: the block waited for another stream. `location` is the
/// innermost frame, preferring a Python file. Skips entries with unknown actions. `lost` is 1 if the snapshot reports
/// an overflow of its ring without a number.
///
/// Throws FileError that names the byte, or the element (`device_traces[0][17]`), at which the file is malformed.
std::vector<Trace> decode_pytorch_snapshot(std::string_view bytes, const std::string& path);

/// Checks a snapshot against undocumented rules of viewers: returns one line for each violation, at most 100
/// lines; empty for a snapshot that every viewer can draw. Rules:
///   - a dictionary with segments and device_traces; segments, blocks and entries have the keys that viewers read,
///     frames a name, a file name and a line; no number is above 2^53
///   - pickles have protocol 2 to 4 and batches of at most 1000 items
///   - segments are in the order of addresses and do not overlap; blocks tile them; total, allocated, active and
///     requested size are sums over the blocks; inactive blocks have requested_size 0
///   - times do not run backwards
///   - seen from the end: a free_completed finds no block at its address, a free_requested finds one that waits, an
///     alloc one that does not; blocks lie inside a segment alive at that time and do not overlap; a segment_alloc
///     finds a segment of exactly its address and size, a segment_map one that contains it; a segment_free or
///     segment_unmap overlaps none, and while pages are unmapped no block is in them
///   - if entries have categories, one of them is "unknown"
/// Throws FileError for a file that is not a snapshot.
std::vector<std::string> check_snapshot(std::string_view bytes, const std::string& path);
/// Of a file.
std::vector<std::string> check_snapshot(const std::string& path);

/// Writes a log in the format of RMM's logging_resource_adaptor: `Thread,Time,Action,Pointer,Size,Stream`. Actions are
/// `allocate`, `allocate failure` and `free` (at the time of the request). Times are hours, minutes, seconds and
/// microseconds of the day (UTC). The log is complete: it starts with allocations of the blocks that existed before. A
/// trace has no threads, so that column is 1.
std::string encode_rmm_csv(const WindowedTrace& trace);

/// The device is cuda:0. Frees complete at once. A clock that runs backwards by more than half a day has passed
/// midnight; by less, threads were logged out of order. The log has no pages: all its addresses, in units of 2 MiB, are
/// committed from the start. Throws FileError that names the line.
Trace decode_rmm_csv(std::string_view bytes, const std::string& path);

/// Writes a trace for chrome://tracing and ui.perfetto.dev: one process for the device. Counters, at most one sample
/// per microsecond: "memory" (allocated and cached bytes, which with pending ones sum to reserved bytes), "reserved",
/// and one for each category that occurs. Instant events for stages of the reclaim policy and failed allocations;
/// duration events for steps. Allocation sizes are requested bytes.
std::string encode_chrome_trace(const WindowedTrace& trace);

}  // namespace poolgrad
