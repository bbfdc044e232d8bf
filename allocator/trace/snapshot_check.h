// Checks PyTorch memory snapshots against the rules that viewers rely on without saying so.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace poolgrad {

/// One line for each violation, at most 100 of them; empty for a snapshot that every viewer can draw. Rules:
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
/// Throws FileError for a file that is no snapshot at all.
std::vector<std::string> check_snapshot(std::string_view bytes, const std::string& path);
/// Of a file.
std::vector<std::string> check_snapshot(const std::string& path);

}  // namespace poolgrad
