// A recorded history of one pool: its events in order, and its blocks at the end. CachingAllocator records it, pgt.h
// reads and writes it, and the laboratory (allocator/lab) replays it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/device.h"
#include "allocator/memory_scope.h"
#include "allocator/report/snapshot.h"

namespace poolgrad {

enum class TraceKind : std::uint8_t {
  allocate,        // a block was allocated; `size` is the request
  free_requested,  // freed on `stream`; `size` is the request
  free_completed,  // reusable; follows free_requested at once unless another stream still used the block
  segment_map,     // pages were committed: `address`, `size`
  segment_unmap,   // pages were released to the device: `address`, `size`
  stage,           // a stage of the reclaim policy ran for a request on `stream`: `stage` is its id, `size` its yield,
                   // `address` its nanoseconds
  out_of_memory,   // a request of `size` on `stream` failed; `address` is the device's free memory
  stream_use,      // `stream` uses the block beyond the stream it was allocated on
  stream_order,    // later work of `stream` waits for the stream whose index is in `address`
  step             // begin_step(): a training step starts; `size` counts them from 0
};
inline constexpr std::size_t trace_kind_count = 10;

inline std::string_view to_string(TraceKind kind) {
  constexpr std::array<std::string_view, trace_kind_count> names = {
      "allocate", "free_requested", "free_completed", "segment_map",  "segment_unmap",
      "stage",    "out_of_memory",  "stream_use",     "stream_order", "step"};
  const auto index = static_cast<std::size_t>(kind);
  return index < names.size() ? names[index] : "invalid";
}

/// Pages and steps have no stream.
constexpr bool names_stream(TraceKind kind) {
  return kind != TraceKind::segment_map && kind != TraceKind::segment_unmap && kind != TraceKind::step;
}

/// One event, 64 bytes. Fields that a kind does not use are 0.
struct TraceEvent {
  std::uint64_t time = 0;        // nanoseconds since Trace::start_us; in a ring, ticks of the timestamp counter
  std::uint64_t allocation = 0;  // allocations are counted from 1
  std::uint64_t address = 0;
  std::uint64_t size = 0;      // bytes
  std::uint64_t ticket = 0;    // of the stream, see stream_order.h
  std::uint64_t location = 0;  // index into Trace::locations, 0 for none; in a ring, a std::source_location as bits
  std::uint32_t scope = 0;     // index into Trace::scopes; in a ring, the interned id
  std::uint32_t stream = 0;    // index into Trace::streams
  std::uint32_t slack = 0;     // block size - requested size
  TraceKind kind = TraceKind::allocate;
  Category category = Category::unknown;
  std::uint8_t stage = 0;
  std::uint8_t flags = 0;  // log2 of an allocation's alignment, if above 64 bytes

  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};
static_assert(sizeof(TraceEvent) == 64);

/// TraceEvent::flags of an allocation.
constexpr std::uint8_t alignment_flags(std::size_t alignment) {
  return alignment <= 64 ? 0 : static_cast<std::uint8_t>(std::countr_zero(alignment));
}

/// A line of source code.
struct TraceLocation {
  std::string file;
  std::string function;
  std::uint32_t line = 0;

  friend bool operator==(const TraceLocation&, const TraceLocation&) = default;
};

struct Trace {
  Device device;
  std::uint64_t start_us = 0;            // of time 0, microseconds since 1970
  std::uint64_t lost = 0;                // older events that a full ring overwrote
  std::string settings;                  // the pool's configuration, in the syntax of POOLGRAD_ALLOCATOR
  std::vector<TraceEvent> events;        // oldest first
  std::vector<std::uint64_t> streams;    // ids, by order of first appearance
  std::vector<std::string> scopes;       // paths such as "block3.attention"; [0] is ""
  std::vector<TraceLocation> locations;  // [0] is empty
  std::vector<BlockSnapshot> blocks;     // at the end, uncommitted ones too; tag.scope indexes `scopes`
};

}  // namespace poolgrad
