// What of a pool's memory the work of which stream may still use, and who may have it when: blocks that were given back
// but wait for another stream, uses beside the owner's, events that are asked and waited for. StreamOrder knows what is
// behind what; this is what follows from it for blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocator/heap/arena.h"
#include "allocator/pool/ground.h"
#include "allocator/pool/pending_blocks.h"
#include "allocator/pool/stream_order.h"

namespace poolgrad {

/// Called with the pool's mutex held. Functions that take the lock may give it up meanwhile.
class StreamLedger {
 public:
  /// Told when a stream's ticket has become another one.
  using NewTicket = std::function<void(std::uint64_t stream, std::uint64_t ticket)>;

  StreamLedger(Ground& ground, Arenas& arenas, NewTicket new_ticket)
      : ground_(ground), arenas_(arenas), new_ticket_(std::move(new_ticket)) {}

  /// The work of the stream so far.
  Stamp now(std::uint64_t stream) const { return {stream, order_.now(stream)}; }
  /// The stream exists, if it ever was destroyed.
  void revive(Stream stream) noexcept { order_.revive(stream.id); }
  /// Makes a busy block that was given back just now free for its stream; the free block that it is part of then.
  Block* put_back(Block* block) noexcept {
    stamp(block);
    return arenas_.of(block).put(block);
  }
  /// What the blocks' streams were doing when the blocks were given back.
  static std::vector<Stamp> stamps_of(const std::vector<Block*>& blocks);
  /// Marks the present as the time at which the block was given back.
  void stamp(Block* block) const {
    block->epoch = ground_.accounts.tick;
    if (ground_.settings.decays) block->window->ages.note(block->address, block->end(), block->epoch);
    block->ticket = order_.now(block->stream);
  }
  /// Whether the block's stream was destroyed and so was `stream`, mostly the same: nothing was queued there since, and
  /// no event can be recorded. The block's work is behind that of its present owner.
  bool outlives(const Block& block, Stream stream) const {
    return block.stream >= StreamOrder::idle && order_.is_destroyed(stream.id);
  }

  /// A block that is not live any more, and was given back on `stream`, is free for its own stream; pending, if that or
  /// what use() noted is another one whose work may not be over.
  void free(PoolLock& lock, Block* block, Stream stream) noexcept;
  /// Waits here for the work of the stream and of the stamps. False if the device refuses.
  bool wait_for(PoolLock& lock, const std::vector<Stamp>& uses, Stream stream) noexcept;
  /// Waits here for the work of the stamps, as far as it may not be over. False if the device refuses for some streams,
  /// as for one that is being recorded: these are added to `refused`.
  bool finish(PoolLock& lock, const std::vector<Stamp>& stamps, Streams& refused) {
    return settle(lock, std::nullopt, stamps, refused);
  }
  bool finish(PoolLock& lock, const std::vector<Stamp>& stamps) {
    Streams refused;
    return finish(lock, stamps, refused);
  }
  /// All work that may still touch memory of the pool is over, as far as the device can say. Then no event is left.
  void finish_all(PoolLock& lock) noexcept;

  std::size_t pending_bytes() const { return pending_.bytes(); }
  bool has_events() const { return order_.has_events(); }
  /// Pending blocks whose work is found to be over are free: all that are asked about, or that are waited for; bytes.
  std::size_t poll_pending(PoolLock& lock);
  std::size_t synchronise_pending(PoolLock& lock);

  /// A block of another stream for the need, behind an event if it must be: a free one, or a pending one; or a run of
  /// free neighbours of several streams. The bytes, with need.block set; or 0.
  std::size_t take_from_other_streams(PoolLock& lock, Need& need, Arena& arena);
  std::size_t take_across_streams(PoolLock& lock, Need& need, Arena& arena);

  /// See CachingAllocator. use() and hand_on() are for a block that lies in no plan.
  void use(Block* block, Stream stream);
  bool hand_on(PoolLock& lock, Block* block, Stream stream);
  void order(PoolLock& lock, Stream later, Stream earlier);
  /// `quietly` calls the function that it is given while no magazine has a block of the stream, nor gets one.
  using Quietly = std::function<void(const std::function<void()>& rename)>;
  void destroy(PoolLock& lock, Stream stream, const Quietly& quietly);
  /// Forgets which names were destroyed, if no block is live that may still be given back under one of them.
  void forget_destroyed() noexcept;

  /// Bytes of the program's heap; gives back what is not needed now.
  std::size_t bookkeeping_bytes() const;
  void tidy() noexcept;

 private:
  /// Lets `later`, or the caller if it is empty, wait for the work of `stamps`, as far as it may not be over. See
  /// finish().
  bool settle(PoolLock& lock, std::optional<std::uint64_t> later, const std::vector<Stamp>& stamps, Streams& refused);
  /// Adds StreamOrder::begin_event to the events.
  void begin_event(StreamEvents& events, std::uint64_t stream);
  void keep_or_discard(PoolLock& lock, StreamEvents& events) noexcept;
  /// `later` has waited for the event or, if it is empty, the event is finished: free_settled() looks again at blocks
  /// that may be free now.
  void note_passed(std::optional<std::uint64_t> later, const StreamEvent& event) noexcept;
  bool is_behind(std::uint64_t stream, Stamp stamp) const {
    return order_.covered(stream, stamp) || order_.finished(stamp);
  }
  bool knows(std::uint64_t stream) const;
  /// Calls visit(stamp) for all work that may still touch memory of the pool, and is not known to be over.
  template <class Visit>
  void for_each_unfinished(Visit visit) const;
  /// The part of finish_all() that is the calls to the device, where there is no memory for anything else.
  void finish_one_by_one(PoolLock& lock) noexcept;
  void rename(std::uint64_t from, std::uint64_t to) noexcept;
  void forget_finished_streams() noexcept;
  std::size_t free_settled() noexcept;
  /// A pending block is free now.
  void completed(const Block& block);
  std::size_t take_pending(PoolLock& lock, Need& need, Arena& arena, Streams& refused);
  /// A busy block that the stream may have is its own, cut as the need wants it.
  std::size_t give(Block* block, Need& need, Arena& arena);

  Ground& ground_;
  Arenas& arenas_;
  NewTicket new_ticket_;
  StreamOrder order_;
  std::size_t destroyed_needed_ = 0;  // names of destroyed streams, when they were last looked at
  PendingBlocks pending_;
  std::unordered_map<const Block*, std::vector<Stamp>> uses_;  // by streams beside the block's own, when last noted
};

}  // namespace poolgrad
