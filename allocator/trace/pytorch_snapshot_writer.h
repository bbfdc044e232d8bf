// Writes traces as PyTorch memory snapshots, for the public memory viewer and for torch/cuda/_memory_viz.py.
//
// What a trace has becomes:
//   committed pages     `segments`, one for each run of committed addresses inside a window, with is_expandable; their
//                       stream is always 0, since a window serves all streams (and viewers join neighbours of one
//                       stream only)
//   segment_map/unmap   entries of the same name, allocate is `alloc`, out_of_memory is `oom`
//   scope, location     `frames`, innermost first: the location, then the names of the scope in file "scope", line 0
//   category            `category` of each entry and block
//   step                `external_annotations` named "step 0", "step 1", ...
//   settings            `allocator_settings`: PyTorch's keys, and under "poolgrad" for each device what the rest of the
//                       file does not say
// Rungs and the order of streams have no place in this format. Each device's entries end with a `snapshot` entry of
// category "unknown", without which older viewers fail on files that use other categories.
#pragma once

#include <span>
#include <string>

#include "allocator/trace/trace.h"
#include "allocator/trace/trace_window.h"

namespace poolgrad {

enum class SnapshotEncoding : std::uint8_t {
  pickle,  // protocol 2, plain data only
  json
};

/// One trace for each device index. Throws ValueError if two have the same index.
std::string encode_pytorch_snapshot(std::span<const WindowedTrace> traces, SnapshotEncoding encoding);
std::string encode_pytorch_snapshot(const Trace& trace, SnapshotEncoding encoding, const TraceWindow& window = {});

}  // namespace poolgrad
