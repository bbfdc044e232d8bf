// Hand-made traces for the tests of the laboratory.
#pragma once

#include <string>
#include <utility>

#include "allocator/trace/trace.h"

namespace poolgrad::examples {

inline constexpr std::uint64_t lab_base = 0x7f0000000000;  // of all addresses below
inline constexpr std::uint64_t lab_page = 2 << 20;

/// A pool that has one page before the first event; addresses are offsets.
class TraceBuilder {
 public:
  TraceBuilder() {
    trace_.device = {DeviceType::sim, 0};
    trace_.streams = {0};
    trace_.scopes = {""};
    trace_.locations = {{}};
  }

  TraceBuilder& map(std::uint64_t at, std::uint64_t size) { return add(TraceKind::segment_map, at, size); }
  TraceBuilder& unmap(std::uint64_t at, std::uint64_t size) { return add(TraceKind::segment_unmap, at, size); }
  TraceBuilder& allocate(std::uint64_t at, std::uint64_t size, Category category = Category::unknown) {
    add(TraceKind::allocate, at, size);
    trace_.events.back().allocation = ++allocations_;
    trace_.events.back().category = category;
    return *this;
  }
  TraceBuilder& request_free(std::uint64_t at, std::uint64_t size) { return add(TraceKind::free_requested, at, size); }
  TraceBuilder& complete_free(std::uint64_t at, std::uint64_t size) { return add(TraceKind::free_completed, at, size); }
  TraceBuilder& free(std::uint64_t at, std::uint64_t size) { return request_free(at, size).complete_free(at, size); }
  TraceBuilder& step() { return add(TraceKind::step, -lab_base, trace_.events.size()); }
  TraceBuilder& stage(std::uint8_t id, std::uint64_t bytes, std::uint64_t nanoseconds) {
    add(TraceKind::stage, nanoseconds - lab_base, bytes);
    trace_.events.back().stage = id;
    return *this;
  }
  TraceBuilder& fail(std::uint64_t bytes) { return add(TraceKind::out_of_memory, -lab_base, bytes); }

  /// Adds a block of the final state.
  TraceBuilder& remains(std::uint64_t at, std::uint64_t size, BlockState state, std::uint64_t number = 0) {
    BlockSnapshot block;
    block.address = lab_base + at;
    block.size = block.requested = size;
    block.state = state;
    block.number = number;
    trace_.blocks.push_back(block);
    return *this;
  }

  Trace& operator*() { return trace_; }
  Trace* operator->() { return &trace_; }

 private:
  TraceBuilder& add(TraceKind kind, std::uint64_t at, std::uint64_t size) {
    TraceEvent& event = trace_.events.emplace_back();
    event.kind = kind;
    event.address = lab_base + at;
    event.size = size;
    event.time = 1000 * trace_.events.size();
    return *this;
  }

  Trace trace_;
  std::uint64_t allocations_ = 0;
};

}  // namespace poolgrad::examples
