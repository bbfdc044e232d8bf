// Converts a trace from events to intervals: blocks, committed pages, marks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/trace/trace.h"

namespace poolgrad::examples {

/// Counts events: moment 0 is before the first event; event i (from 0) happens at moment i + 1. Blocks from before the
/// trace begin at 0; remaining ones end at n + 1 for n events.
using Moment = std::uint32_t;

struct BlockLife {
  std::uint64_t address = 0;
  std::uint64_t size = 0;       // bytes of the block
  std::uint64_t requested = 0;  // bytes
  std::uint64_t number = 0;     // of the allocation
  std::uint64_t location = 0;   // index into Trace::locations
  std::uint32_t scope = 0;      // index into Trace::scopes
  std::uint32_t stream = 0;     // index into Trace::streams
  Moment begin = 0;
  Moment given_back = 0;  // from here to `end`, waits for another stream
  Moment end = 0;
  Category category = Category::unknown;
};

/// A range of committed pages.
struct PageLife {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  Moment begin = 0, end = 0;
};

struct History {
  std::vector<BlockLife> blocks;  // by begin
  std::vector<PageLife> pages;    // by begin; empty if the trace has no page events
};

/// Handles any trace: an event that contradicts earlier ones (a block on top of a live one, a free of nothing) ends or
/// begins blocks as needed. Throws ValueError for more than 2^32 - 2 events.
History history_of(const Trace& trace);

/// The state of the pool at one moment. All sizes in bytes.
struct Sample {
  Moment moment = 0;
  std::array<std::uint64_t, category_count> requested{};
  std::uint64_t live = 0;      // live blocks
  std::uint64_t pending = 0;   // pending blocks
  std::uint64_t reserved = 0;  // committed

  std::uint64_t requested_in_all() const;
};

/// The state at moments 0 to `events`. With more than `most` events: at moment 0 and at the fullest moment of each of
/// `most` equal parts.
std::vector<Sample> samples_of(const History& history, std::size_t events, std::size_t most);

/// A range of used addresses: disjoint, in address order, with gaps under 2 MiB closed.
struct AddressRange {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};
std::vector<AddressRange> used_addresses(const History& history);

}  // namespace poolgrad::examples
