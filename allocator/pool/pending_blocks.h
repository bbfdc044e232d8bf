// Blocks that were freed but wait for other streams. Takes one by size in logarithmic time. Checks a stream's blocks
// again only after the stream has waited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "allocator/heap/block.h"
#include "allocator/pool/stream_order.h"

namespace poolgrad {

struct PendingBlock {
  Block* block;  // busy while a thread tries to take it
  std::uint64_t number;
  std::vector<Stamp> stamps;  // work of other streams to wait for
};

class PendingBlocks {
  using List = std::list<PendingBlock>;
  struct BySize {
    std::size_t size;
    std::uint64_t number;
    List::iterator pending;
    friend bool operator<(const BySize& a, const BySize& b) {
      return std::pair(a.size, a.number) < std::pair(b.size, b.number);
    }
  };

 public:
  std::size_t bytes() const { return bytes_; }
  /// Adds a pending block and takes its stamps; `changed`: some of them may be finished. If it throws, nothing has
  /// changed.
  void add(Block* block, std::vector<Stamp>& stamps, bool changed);
  /// Calls visit(const PendingBlock&) for each; those of one stream in order of arrival.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [stream, of_stream] : streams_)
      for (const PendingBlock& pending : of_stream.blocks) visit(pending);
  }

  /// Records that the stream waited for others, or that work of any stream finished.
  void note_wait(std::uint64_t stream) noexcept {
    if (const auto known = streams_.find(stream); known != streams_.end()) known->second.changed = true;
  }
  void note_finished() noexcept { finished_ = true; }
  /// Calls settle(PendingBlock&) for the blocks that a recent wait may have freed. Removes each for which it returns
  /// true and calls free(Block*).
  template <class Settle, class Free>
  void free_settled(Settle settle, Free free) noexcept {
    const bool all = std::exchange(finished_, false);
    for (auto of_stream = streams_.begin(); of_stream != streams_.end();) {
      List& blocks = of_stream->second.blocks;
      const bool looked_at = std::exchange(of_stream->second.changed, false) || all;
      for (auto next = blocks.begin(); looked_at && next != blocks.end();) {
        const auto pending = next++;
        Block* block = pending->block;
        if (!settle(*pending) || block->state == BlockState::busy) continue;
        by_size_.erase({block->size, pending->number, pending});
        blocks.erase(pending);
        bytes_ -= block->size;
        free(block);
      }
      of_stream = blocks.empty() ? streams_.erase(of_stream) : std::next(of_stream);
    }
  }

  /// A busy block, until it is put back or removed.
  using Taken = std::set<BySize>::node_type;
  /// The smallest block of at least `size` bytes with suits(const PendingBlock&), of equals the oldest; empty if there
  /// is none.
  template <class Suits>
  Taken take(std::size_t size, Suits suits) {
    for (auto next = by_size_.lower_bound({size, 0, {}}); next != by_size_.end(); ++next) {
      if (!suits(std::as_const(*next->pending))) continue;
      next->pending->block->state = BlockState::busy;
      bytes_ -= next->size;
      return by_size_.extract(next);
    }
    return {};
  }
  void put_back(Taken& taken) noexcept;
  void remove(const Taken& taken) noexcept;

  /// Renames a stream.
  void rename(std::uint64_t from, std::uint64_t to) noexcept;
  /// Heap bytes.
  std::size_t bookkeeping_bytes() const;

 private:
  struct OfStream {
    List blocks;
    bool changed = false;  // since the last free_settled()
  };

  std::map<std::uint64_t, OfStream> streams_;
  std::set<BySize> by_size_;  // without taken blocks
  std::uint64_t next_number_ = 0;
  std::size_t bytes_ = 0;
  bool finished_ = false;
};

}  // namespace poolgrad
