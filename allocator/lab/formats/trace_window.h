// Cuts a part out of a trace as a complete trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "allocator/trace/trace.h"

namespace poolgrad {

/// Selects a part of a trace.
struct TraceWindow {
  std::size_t from = 0;                                      // index of the first event
  std::size_t to = std::numeric_limits<std::size_t>::max();  // index after the last event
  std::uint64_t min_size = 0;                                // leaves out smaller requests that end inside the window
};

struct WindowedTrace {
  Trace trace;
  std::vector<BlockSnapshot> before;  // live and pending blocks at the start, by address
  std::uint64_t reserved_before = 0;  // committed bytes at the start
  std::size_t contradictions = 0;     // events that were left out
};

/// Events [from, to) with the blocks at `to`, found by undoing events from the end. The result is consistent for any
/// input: skips and counts an event that cannot be undone (a block allocated over a live one, freed twice, or outside
/// committed memory; pages mapped twice). Replaces names out of range by index 0.
WindowedTrace cut_trace(const Trace& trace, const TraceWindow& window = {});

}  // namespace poolgrad
