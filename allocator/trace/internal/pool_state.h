// What a pool held at one moment of a trace, taken back event by event from the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "allocator/trace/internal/address_map.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

/// Disjoint ranges of addresses; neighbours join.
class AddressRanges {
 public:
  /// False, changing nothing, if any byte of it is already there.
  bool add(std::uint64_t begin, std::uint64_t end);
  /// False, changing nothing, if any byte of it is missing.
  bool remove(std::uint64_t begin, std::uint64_t end);
  bool contains(std::uint64_t begin, std::uint64_t end) const;

  const std::map<std::uint64_t, std::uint64_t>& ranges() const { return ranges_; }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // begin -> end
};

/// A range of committed addresses of a window.
struct CommittedPiece {
  std::uint64_t begin = 0, end = 0;
  std::size_t window = 0;
};

/// Blocks that tile the pieces, which are in the order of addresses: those of `held` that fit into them without
/// overlap, and free ones between; uncommitted ones between pieces of one window.
std::vector<BlockSnapshot> tile_blocks(const std::vector<CommittedPiece>& pieces, std::vector<BlockSnapshot> held);

class PoolState {
 public:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  struct Held {
    BlockSnapshot block;                // live or pending
    std::size_t free_requested = none;  // indices of the events that were taken back
    std::size_t free_completed = none;
  };

  /// The end of the trace. Blocks that overlap one of a lower address are left out.
  explicit PoolState(const Trace& trace);

  /// Takes the event with that index back. False, changing nothing, if it contradicts the state. `ended`, if any,
  /// becomes the block that an allocation had made.
  bool undo(const TraceEvent& event, std::size_t index, Held* ended = nullptr);

  std::uint64_t committed_bytes() const;
  /// All blocks, window by window, holes too. Free neighbours are one block once anything was taken back.
  std::vector<BlockSnapshot> blocks() const;

  template <typename Visit>
  void for_each_held(Visit visit) const {
    held_.for_each([&](std::uint64_t, const Held& held) { visit(held); });
  }

 private:
  bool undo_free_completed(const TraceEvent& event, std::size_t index);
  std::vector<CommittedPiece> committed_by_window() const;

  const Trace* trace_;
  std::vector<BlockSnapshot> final_;     // by address
  std::vector<CommittedPiece> windows_;  // by address
  AddressMap<Held> held_;
  AddressRanges committed_;
  bool changed_ = false;
};

}  // namespace poolgrad
