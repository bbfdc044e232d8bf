// Reads PyTorch memory snapshots: pickles of protocols 2 to 5 as PyTorch and Python write them, and JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "allocator/trace/trace.h"

namespace poolgrad {

/// One trace for each device that has segments or entries, in the order of device indices. A plain list is taken for
/// the segments of an old snapshot.
///
/// A segment becomes a window; segment_alloc and segment_map both become segment_map. Allocations are numbered in
/// order: first the blocks that were there before the first entry (freed without having been allocated, or live at the
/// end without an entry), then one for each alloc. A free has the number, category and scope of its allocation, and its
/// size where that is known. A gap between free_requested and free_completed stays: another stream was waited for.
/// `location` is the innermost frame, preferring one of a Python file. Entries of unknown actions are left out.
/// `lost` is 1 where the snapshot says that its ring overflowed and not by how much.
///
/// `path` is for error texts. Throws FileError that names the byte, or the element (`device_traces[0][17]`), at which
/// the file is malformed.
std::vector<Trace> decode_pytorch_snapshot(std::string_view bytes, const std::string& path);

}  // namespace poolgrad
