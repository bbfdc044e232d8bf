// A part of a trace that is again a whole trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "allocator/trace/trace.h"

namespace poolgrad {

/// Which part of a trace is wanted.
struct TraceWindow {
  std::size_t from = 0;                                      // index of the first event
  std::size_t to = std::numeric_limits<std::size_t>::max();  // index behind the last one
  std::uint64_t min_size = 0;  // requests of fewer bytes are left out if they end inside the window
};

struct WindowedTrace {
  Trace trace;
  std::vector<BlockSnapshot> before;  // live and pending blocks when it begins, by address
  std::uint64_t reserved_before = 0;  // committed bytes when it begins
  std::size_t contradictions = 0;     // events that were left out
};

/// Events [from, to) with the blocks as they were at `to`, found by taking the events back one by one from the end.
/// What it returns never contradicts itself, whatever it is given: an event that cannot be taken back from what follows
/// it (a block allocated over a live one, freed twice, or outside committed memory; pages mapped twice) is left out and
/// counted. Names out of range become those of index 0.
WindowedTrace cut_trace(const Trace& trace, const TraceWindow& window = {});

}  // namespace poolgrad
