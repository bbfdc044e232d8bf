// Helpers of the readers of traces: names, allocation numbers, final blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/base/salted_map.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// Numbers streams, scopes and locations in order of first appearance.
class TraceNames {
 public:
  explicit TraceNames(Trace& trace) : trace_(trace) {
    trace.streams = {};
    trace.scopes = {""};
    trace.locations = {{}};
  }

  std::uint32_t stream(std::uint64_t id) {
    const auto [entry, added] = streams_.try_emplace(id, trace_.streams.size());
    if (added) trace_.streams.push_back(id);
    return entry->second;
  }
  std::uint32_t scope(const std::string& path) {
    if (path.empty()) return 0;
    const auto [entry, added] = scopes_.try_emplace(path, trace_.scopes.size());
    if (added) trace_.scopes.push_back(path);
    return entry->second;
  }
  std::uint64_t location(std::string_view file, std::string_view function, std::uint32_t line) {
    const auto [entry, added] =
        locations_.try_emplace({{std::string(file), std::string(function)}, line}, trace_.locations.size());
    if (added) trace_.locations.push_back({std::string(file), std::string(function), line});
    return entry->second;
  }

 private:
  Trace& trace_;
  SaltedMap<std::uint32_t> streams_;
  SaltedTextMap<std::uint32_t> scopes_;
  std::map<std::pair<std::pair<std::string, std::string>, std::uint32_t>, std::uint64_t> locations_;
};

/// Numbers the allocations of a trace in order, as decode_pytorch_snapshot() describes. Copies an allocation's number,
/// category, scope and (for frees) size to its frees and final blocks.
void number_allocations(Trace& trace);

/// How events refer to their allocation.
enum class AllocationNames : std::uint8_t {
  numbers,   // by `allocation`, or by address if that is 0
  addresses  // those at one address, from one allocate to the next
};

/// The first error of a trace from a file; none for a trace that can be exported and replayed. Times, sizes and ends of
/// ranges must fit into 53 and 63 bits. Blocks must not overlap or be smaller than their requests. No block may be
/// allocated while live, freed twice, used after its free, or live at the end after a free.
std::optional<std::string> fault_of(const Trace& trace, AllocationNames naming);

/// A range of committed addresses of a window.
struct CommittedPiece {
  std::uint64_t begin = 0, end = 0;
  std::size_t window = 0;
};

/// Tiles the pieces, sorted by address, with blocks: blocks of `held` that fit without overlap, free blocks between
/// them, and uncommitted ones between pieces of one window.
std::vector<BlockSnapshot> tile_blocks(const std::vector<CommittedPiece>& pieces, std::vector<BlockSnapshot> held);

}  // namespace poolgrad
