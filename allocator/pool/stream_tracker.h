// Tracks which streams may still use freed blocks, and which stream may reuse them: blocks pending on other streams,
// uses by streams besides the owner, and events to poll and to wait for. StreamOrder knows the order of work; this
// class applies it to blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocator/heap/arena.h"
#include "allocator/pool/pending_blocks.h"
#include "allocator/pool/pool_context.h"
#include "allocator/pool/stream_order.h"

namespace poolgrad {

/// Requires the pool's mutex. Functions that take the lock may release it meanwhile.
class StreamTracker {
 public:
  /// Called when a stream gets a new ticket.
  using NewTicket = std::function<void(std::uint64_t stream, std::uint64_t ticket)>;

  StreamTracker(PoolContext& context, Arenas& arenas, NewTicket new_ticket)
      : context_(context), arenas_(arenas), new_ticket_(std::move(new_ticket)) {}

  /// The stream's work so far.
  Stamp now(std::uint64_t stream) const { return {stream, order_.now(stream)}; }
  /// Marks the stream as existing, after a stream_destroyed().
  void revive(Stream stream) noexcept { order_.revive(stream.id); }
  /// Frees a busy block, freed just now, for its stream; returns the merged free block.
  Block* put_back(Block* block) noexcept {
    stamp(block);
    return arenas_.of(block).put(block);
  }
  /// The streams' stamps at the frees of these blocks.
  static std::vector<Stamp> stamps_of(const std::vector<Block*>& blocks);
  /// Stamps the block's free with the current ticket.
  void stamp(Block* block) const {
    block->epoch = context_.accounts.tick;
    if (context_.settings.decays) block->window->ages.note(block->address, block->end(), block->epoch);
    block->ticket = order_.now(block->stream);
  }
  /// Whether the streams of the block and of the free, usually the same one, were destroyed: no work was queued there
  /// since, and no event can be recorded. The block's work is before that of its present owner.
  bool outlives(const Block& block, Stream stream) const {
    return block.stream >= StreamOrder::idle && order_.is_destroyed(stream.id);
  }

  /// Frees a block for its own stream, after a free on `stream`. The block becomes pending if another stream, from
  /// `stream` or use(), may still have work on it.
  void free(PoolLock& lock, Block* block, Stream stream) noexcept;
  /// Blocks until the work of the stream and of the stamps is done. Returns false if the device refuses.
  bool wait_for(PoolLock& lock, const std::vector<Stamp>& uses, Stream stream) noexcept;
  /// Blocks until the unfinished work of the stamps is done. Returns false if the device refuses for some streams, as
  /// for one under capture: adds these to `refused`.
  bool finish(PoolLock& lock, const std::vector<Stamp>& stamps, Streams& refused) {
    return settle(lock, std::nullopt, stamps, refused);
  }
  bool finish(PoolLock& lock, const std::vector<Stamp>& stamps) {
    Streams refused;
    return finish(lock, stamps, refused);
  }
  /// Blocks until all work on memory of the pool is done, as far as the device can report it. Then no event is left.
  void finish_all(PoolLock& lock) noexcept;

  std::size_t pending_bytes() const { return pending_.bytes(); }
  bool has_events() const { return order_.has_events(); }
  /// Frees pending blocks whose work is done, by polling or by waiting; returns the bytes.
  std::size_t poll_pending(PoolLock& lock);
  std::size_t synchronise_pending(PoolLock& lock);

  /// Takes memory of another stream for the request, behind an event if needed: a free block, a pending one, or a run
  /// of free neighbors of several streams. Returns the bytes, with attempt.block set; or 0.
  std::size_t take_from_other_streams(PoolLock& lock, AllocationAttempt& attempt, Arena& arena);
  std::size_t take_across_streams(PoolLock& lock, AllocationAttempt& attempt, Arena& arena);

  /// See CachingAllocator. use() and transfer_to_stream() take a block outside all plans.
  void use(Block* block, Stream stream);
  bool transfer_to_stream(PoolLock& lock, Block* block, Stream stream);
  void order(PoolLock& lock, Stream later, Stream earlier);
  /// `quietly` calls its argument while no magazine has, or can get, a block of the stream.
  using Quietly = std::function<void(const std::function<void()>& rename)>;
  void destroy(PoolLock& lock, Stream stream, const Quietly& quietly);
  /// Forgets ids of destroyed streams if no live block can still be freed under one of them.
  void forget_destroyed() noexcept;

  /// Heap bytes; frees unused memory.
  std::size_t bookkeeping_bytes() const;
  void tidy() noexcept;

 private:
  /// Makes `later`, or the caller if it is empty, wait for the unfinished work of `stamps`. See finish().
  bool settle(PoolLock& lock, std::optional<std::uint64_t> later, const std::vector<Stamp>& stamps, Streams& refused);
  /// Adds StreamOrder::begin_event to the events.
  void begin_event(StreamEvents& events, std::uint64_t stream);
  void keep_or_discard(PoolLock& lock, StreamEvents& events) noexcept;
  /// Records that `later` waited for the event or, if empty, that the event is finished. free_settled() then checks the
  /// affected blocks.
  void note_passed(std::optional<std::uint64_t> later, const StreamEvent& event) noexcept;
  bool is_behind(std::uint64_t stream, Stamp stamp) const {
    return order_.covered(stream, stamp) || order_.finished(stamp);
  }
  bool knows(std::uint64_t stream) const;
  /// Calls visit(stamp) for all possibly unfinished work on memory of the pool.
  template <class Visit>
  void for_each_unfinished(Visit visit) const;
  /// The device calls of finish_all(), one by one, when there is no memory for lists.
  void finish_one_by_one(PoolLock& lock) noexcept;
  void rename(std::uint64_t from, std::uint64_t to) noexcept;
  void forget_finished_streams() noexcept;
  std::size_t free_settled() noexcept;
  /// Records that a pending block is free.
  void completed(const Block& block);
  std::size_t take_pending(PoolLock& lock, AllocationAttempt& attempt, Arena& arena, Streams& refused);
  /// Gives a busy block to the request's stream, cut to size.
  std::size_t give(Block* block, AllocationAttempt& attempt, Arena& arena);

  PoolContext& context_;
  Arenas& arenas_;
  NewTicket new_ticket_;
  StreamOrder order_;
  std::size_t destroyed_needed_ = 0;  // destroyed streams at the last look
  PendingBlocks pending_;
  std::unordered_map<const Block*, std::vector<Stamp>> uses_;  // by streams besides the block's own, at their last note
};

}  // namespace poolgrad
