#include "allocator/pool/stream_tracker.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "allocator/error.h"

namespace poolgrad {

namespace {

// The results of events in one device call.
struct Passage {
  StreamEvents passed;
  std::uint64_t recorded = 0;
};

// Records the events that are not recorded yet. Moves events for which pass(id) is true to `into.passed`; refused ones
// stay. Throws an exception other than Error only after all events, because a release of memory requires all possible
// waits.
template <class Pass>
void pass_each(DeviceMemory& memory, StreamEvents& events, Passage& into, Pass pass) {
  std::exception_ptr foreign;
  for (auto event = events.begin(); event != events.end();) {
    const auto next = std::next(event);
    try {
      if (event->id == 0) {
        event->id = memory.record_event(Stream{memory.device(), event->covers.stream});
        ++into.recorded;
      }
      if (pass(event->id)) into.passed.splice(into.passed.end(), events, event);
    } catch (const Error&) {
      // Try again later.
    } catch (...) {
      foreign = std::current_exception();
    }
    event = next;
  }
  if (foreign) std::rethrow_exception(foreign);
}

}  // namespace

std::vector<Stamp> StreamTracker::stamps_of(const std::vector<Block*>& blocks) {
  std::vector<Stamp> stamps;
  for (const Block* block : blocks) stamps.push_back({block->stream, block->ticket});
  return stamps;
}

void StreamTracker::keep_or_discard(PoolLock& lock, StreamEvents& events) noexcept {
  for (auto event = events.begin(); event != events.end();) {
    const auto next = std::next(event);
    const bool useful = StreamOrder::is_retired(event->covers.stream) || !context_.settings.config.deterministic;
    if (event->id == 0) {
      events.erase(event);
    } else if (useful) {
      order_.keep(events, event);
    }
    event = next;
  }
  if (events.empty()) return;
  UnlockedCall call(lock);
  call([&] {
    for (const StreamEvent& event : events) context_.memory->discard_event(event.id);
  });
}

bool StreamTracker::settle(PoolLock& lock, std::optional<std::uint64_t> later, const std::vector<Stamp>& stamps,
                           Streams& refused) {
  StreamEvents events;
  Passage passage;
  const std::size_t refused_before = refused.size();
  UnlockedCall call(lock, [&]() noexcept {
    context_.accounts.events_recorded += passage.recorded;
    for (const StreamEvent& event : passage.passed) note_passed(later, event);
    if (later) events.splice(events.begin(), passage.passed);  // not spent
    keep_or_discard(lock, events);
    if (!later && !passage.passed.empty()) forget_finished_streams();
  });
  std::vector<Stamp> latest;
  for (const Stamp& stamp : stamps) note_latest(latest, stamp);
  for (const Stamp& stamp : latest) {
    if (later ? is_behind(*later, stamp) : order_.finished(stamp)) continue;
    if (order_.take_event(stamp, events)) continue;
    if (StreamOrder::is_retired(stamp.stream)) {
      refused.push_back(stamp.stream);  // another thread is polling its only event
    } else {
      begin_event(events, stamp.stream);
    }
  }
  if (events.empty()) return refused.size() == refused_before;
  call([&] {
    pass_each(*context_.memory, events, passage, [&](EventId event) {
      if (later) {
        context_.memory->stream_wait(Stream{context_.settings.device, *later}, event);
      } else {
        context_.memory->synchronize(event);
      }
      return true;
    });
  });
  for (const StreamEvent& event : events) refused.push_back(event.covers.stream);
  return refused.size() == refused_before;
}

void StreamTracker::forget_finished_streams() noexcept {
  while (const std::optional<std::uint64_t> stream = order_.take_finished_retired()) {
    rename(*stream, StreamOrder::idle);
  }
}

void StreamTracker::rename(std::uint64_t from, std::uint64_t to) noexcept {
  const auto rename_all = [&](std::vector<Stamp>& stamps) {
    for (Stamp& stamp : stamps) {
      if (stamp.stream == from) stamp.stream = to;
    }
  };
  arenas_.rename_stream(from, to);
  pending_.rename(from, to);
  for (auto& [block, uses] : uses_) rename_all(uses);
}

void StreamTracker::note_passed(std::optional<std::uint64_t> later, const StreamEvent& event) noexcept {
  if (!later) {
    order_.finish(event);
    pending_.note_finished();
    return;
  }
  order_.wait(*later, event);
  pending_.note_wait(*later);
}

void StreamTracker::free(PoolLock& lock, Block* block, Stream stream) noexcept {
  stamp(block);
  if (block->stream == stream.id && !block->used_elsewhere) {
    context_.accounts.no_longer_active(block->size);
    arenas_.of(block).put(block);
    return;
  }
  const bool outlived = outlives(*block, stream);
  std::vector<Stamp> stamps;
  if (block->used_elsewhere) {
    block->used_elsewhere = false;
    if (auto uses = uses_.extract(block)) stamps = std::move(uses.mapped());
  }
  std::erase_if(stamps, [&](const Stamp& stamp) { return stamp.stream == block->stream; });
  for (Stamp& stamp : stamps) stamp.ticket = order_.now(stamp.stream);
  const bool foreign = block->stream != stream.id && !outlived;
  if (foreign) order_.revive(stream.id);
  if (foreign || !stamps.empty()) {
    try {
      if (foreign && std::ranges::find(stamps, stream.id, &Stamp::stream) == stamps.end()) {
        note_latest(stamps, {stream.id, order_.now(stream.id)});
      }
      const auto is_over = [&](const Stamp& stamp) { return is_behind(block->stream, stamp); };
      pending_.add(block, stamps, std::ranges::any_of(stamps, is_over));
      return;
    } catch (const std::bad_alloc&) {
      if (!wait_for(lock, stamps, stream)) return;  // leaks the block rather than reuse it before the streams are done
    }
  }
  completed(*block);
  arenas_.of(block).put(block);
}

bool StreamTracker::wait_for(PoolLock& lock, const std::vector<Stamp>& uses, Stream stream) noexcept {
  bool over = true;
  UnlockedCall call(lock);
  call([&] {
    const auto wait = [&](std::uint64_t other) {
      if (other == StreamOrder::idle) return;
      over = over && !StreamOrder::is_retired(other);
      if (over) context_.memory->synchronize(context_.memory->record_event(Stream{context_.settings.device, other}));
    };
    try {
      wait(stream.id);
      for (const Stamp& use : uses) wait(use.stream);
    } catch (...) {
      over = false;
    }
  });
  return over;
}

template <class Visit>
void StreamTracker::for_each_unfinished(Visit visit) const {
  const auto consider = [&](const Stamp& stamp) {
    if (!order_.finished(stamp)) visit(stamp);
  };
  pending_.for_each([&](const PendingBlock& pending) { std::ranges::for_each(pending.stamps, consider); });
  for (const auto& [block, uses] : uses_) std::ranges::for_each(uses, consider);
  for (const Arena& arena : arenas_) {
    for (const auto& window : arena.windows()) {
      for (const Block* block = window->first; block != nullptr; block = block->next) {
        if (block->state == BlockState::uncommitted) continue;
        const bool given_back = block->state == BlockState::free || block->state == BlockState::pending;
        consider({block->stream, given_back ? block->ticket : order_.now(block->stream)});
      }
    }
  }
}

void StreamTracker::finish_all(PoolLock& lock) noexcept {
  try {
    std::vector<Stamp> stamps;
    for_each_unfinished([&](const Stamp& stamp) { note_latest(stamps, stamp); });
    finish(lock, stamps);
  } catch (const std::bad_alloc&) {
    finish_one_by_one(lock);
  } catch (...) {
    // The device can no longer report the end of its work.
  }
  StreamEvents events;
  order_.take_events(events);
  for (const StreamEvent& event : events) context_.memory->discard_event(event.id);
}

void StreamTracker::finish_one_by_one(PoolLock& lock) noexcept {
  std::uint64_t least = 0;
  do {
    std::optional<Stamp> next;  // of the first stream from here on
    for_each_unfinished([&](const Stamp& stamp) {
      if (stamp.stream < least || (next && stamp.stream > next->stream)) return;
      const bool same = next && stamp.stream == next->stream;
      next = {stamp.stream, same ? std::max(stamp.ticket, next->ticket) : stamp.ticket};
    });
    if (!next) return;
    least = next->stream + 1;
    StreamEvents events;
    const bool recorded = order_.take_event(*next, events);
    if (!recorded && StreamOrder::is_retired(next->stream)) continue;
    UnlockedCall call(lock);
    call([&] {
      try {
        const Stream stream{context_.settings.device, next->stream};
        context_.memory->synchronize(recorded ? events.front().id : context_.memory->record_event(stream));
      } catch (...) {
        // The device can no longer report the end of its work.
      }
    });
  } while (least != 0);
}

void StreamTracker::completed(const Block& block) {
  context_.accounts.no_longer_active(block.size);
  context_.recorder.record_block(TraceKind::free_completed, block, now(block.stream));
}

std::size_t StreamTracker::free_settled() noexcept {
  std::size_t bytes = 0;
  const auto settle = [&](PendingBlock& pending) {
    bool ordered = false;
    std::erase_if(pending.stamps, [&](const Stamp& stamp) {
      if (order_.finished(stamp)) return true;
      const bool covered = order_.covered(pending.block->stream, stamp);
      ordered = ordered || covered;
      return covered;
    });
    // The owner's waits come after its current ticket, not that of the free.
    if (ordered) pending.block->ticket = order_.now(pending.block->stream);
    return pending.stamps.empty();
  };
  pending_.free_settled(settle, [&](Block* block) {
    bytes += block->size;
    completed(*block);
    arenas_.of(block).put(block);
  });
  return bytes;
}

std::size_t StreamTracker::poll_pending(PoolLock& lock) {
  if (context_.settings.config.deterministic) return free_settled();
  {
    StreamEvents events;
    Passage passage;
    UnlockedCall call(lock, [&]() noexcept {
      context_.accounts.events_recorded += passage.recorded;
      for (const StreamEvent& event : passage.passed) note_passed(std::nullopt, event);
      keep_or_discard(lock, events);
      forget_finished_streams();
    });
    pending_.for_each([&](const PendingBlock& pending) {
      for (const Stamp& stamp : pending.stamps) {
        const auto covers = [&](const StreamEvent& event) { return event.covers.stream == stamp.stream; };
        if (order_.lacks_event(stamp) && std::ranges::none_of(events, covers)) begin_event(events, stamp.stream);
      }
    });
    order_.take_events(events);
    // Events that cannot be polled now are polled next time.
    call([&] {
      pass_each(*context_.memory, events, passage,
                [&](EventId event) { return context_.memory->event_finished(event); });
    });
  }
  return free_settled();
}

std::size_t StreamTracker::synchronise_pending(PoolLock& lock) {
  std::vector<Stamp> stamps;
  pending_.for_each([&](const PendingBlock& pending) {
    for (const Stamp& stamp : pending.stamps) note_latest(stamps, stamp);
  });
  if (!stamps.empty()) ++context_.accounts.num_sync_all_streams;
  finish(lock, stamps);
  return free_settled();
}

std::size_t StreamTracker::take_from_other_streams(PoolLock& lock, AllocationAttempt& attempt, Arena& arena) {
  const std::uint64_t stream = attempt.stream.id;
  const auto ready = [&](const Block* block) { return is_behind(stream, {block->stream, block->ticket}); };
  Streams refused;
  while (Block* block = arena.take_from_other_streams(attempt.size, attempt.alignment, stream, ready, refused)) {
    UnlockedCall call(lock, [&]() noexcept { arena.put(block); });
    if (!settle(lock, stream, {{block->stream, block->ticket}}, refused)) continue;
    arena.expect(stream);
    attempt.block = arena.carve(block, attempt.size, attempt.alignment);
    call.done();
    attempt.block->stream = stream;
    return attempt.block->size;
  }
  return take_pending(lock, attempt, arena, refused);
}

std::size_t StreamTracker::take_pending(PoolLock& lock, AllocationAttempt& attempt, Arena& arena, Streams& refused) {
  const auto is_refused = [&](const Stamp& stamp) { return contains(refused, stamp.stream); };
  while (true) {
    auto taken = pending_.take(attempt.size, [&](const PendingBlock& pending) {
      const Block* block = pending.block;
      return arena.owns(block->address) && Arena::fits(block, attempt.size, attempt.alignment) &&
             !contains(refused, block->stream) && std::ranges::none_of(pending.stamps, is_refused);
    });
    if (!taken) return 0;
    const PendingBlock& pending = *taken.value().pending;
    Block* block = pending.block;
    std::vector<Stamp> stamps;
    UnlockedCall call(lock, [&]() noexcept { pending_.put_back(taken); });
    stamps = pending.stamps;
    stamps.push_back({block->stream, block->ticket});
    if (!settle(lock, attempt.stream.id, stamps, refused)) continue;
    arena.expect(attempt.stream.id);
    arenas_.store().reserve(2);  // for carve()
    call.done();
    pending_.remove(taken);
    completed(*block);
    return give(block, attempt, arena);
  }
}

std::size_t StreamTracker::give(Block* block, AllocationAttempt& attempt, Arena& arena) {
  block->stream = attempt.stream.id;
  block->ticket = order_.now(block->stream);
  attempt.block = arena.carve(block, attempt.size, attempt.alignment);
  return attempt.block->size;
}

std::size_t StreamTracker::take_across_streams(PoolLock& lock, AllocationAttempt& attempt, Arena& arena) {
  Streams refused;
  while (true) {
    const std::vector<Block*> run = arena.take_across_streams(attempt.size, attempt.alignment, refused);
    if (run.empty()) return 0;
    UnlockedCall call(lock, [&]() noexcept {
      for (Block* block : run) arena.put(block);
    });
    if (!settle(lock, attempt.stream.id, stamps_of(run), refused)) continue;
    arena.expect(attempt.stream.id);
    arenas_.store().reserve(2);  // for carve()
    call.done();
    return give(arena.join(run), attempt, arena);
  }
}

void StreamTracker::use(Block* block, Stream stream) {
  std::vector<Stamp>& uses = uses_[block];
  block->used_elsewhere = true;
  note_latest(uses, now(stream.id));
  context_.recorder.record_block(TraceKind::stream_use, *block, now(stream.id));
}

bool StreamTracker::transfer_to_stream(PoolLock& lock, Block* block, Stream stream) {
  // Marked, so that other threads leave the block as it is while the lock is released.
  const bool was_used = std::exchange(block->used_elsewhere, true);
  UnlockedCall settled(lock, [&]() noexcept { block->used_elsewhere = was_used || uses_.contains(block); });
  std::vector<Stamp> stamps{now(block->stream)};
  if (was_used) {
    for (const Stamp& use : uses_[block]) stamps.push_back(now(use.stream));
  }
  if (Streams refused; !settle(lock, stream.id, stamps, refused)) return false;
  // These events do not cover a use recorded while the lock was released.
  const auto over = [&](const Stamp& use) {
    return use.stream == stream.id || std::ranges::any_of(stamps, [&](const Stamp& known) {
             return known.stream == use.stream && use.ticket <= known.ticket;
           });
  };
  std::vector<Stamp>& uses = uses_[block];
  settled.done();
  std::erase_if(uses, over);
  block->used_elsewhere = !uses.empty();
  if (uses.empty()) uses_.erase(block);
  block->stream = stream.id;
  return true;
}

void StreamTracker::order(PoolLock& lock, Stream later, Stream earlier) {
  order_.revive(later.id);
  order_.revive(earlier.id);
  StreamEvents events;
  UnlockedCall call(lock, [&]() noexcept { keep_or_discard(lock, events); });
  begin_event(events, earlier.id);
  StreamEvent& event = events.front();
  call([&] {
    event.id = context_.memory->record_event(earlier);
    context_.memory->stream_wait(later, event.id);
  });
  ++context_.accounts.events_recorded;
  note_passed(later.id, event);
  // The caller guarantees that uses before the event end before all later work of the owner.
  const auto over = [&](const Stamp& use) { return use.stream == earlier.id && use.ticket <= event.covers.ticket; };
  for (auto& [block, uses] : uses_) {
    if (block->stream == later.id) std::erase_if(uses, over);
  }
  Recorder& recorder = context_.recorder;
  if (!recorder.running()) return;
  recorder.record({.address = recorder.stream_index(earlier.id),
                   .stream = recorder.stream_index(later.id),
                   .kind = TraceKind::stream_order});
}

bool StreamTracker::knows(std::uint64_t stream) const {
  const auto names = [&](const std::vector<Stamp>& stamps) {
    return std::ranges::find(stamps, stream, &Stamp::stream) != stamps.end();
  };
  bool is_waited_for = false;
  pending_.for_each([&](const PendingBlock& pending) { is_waited_for |= names(pending.stamps); });
  return is_waited_for || arenas_.knows_stream(stream) ||
         std::ranges::any_of(uses_, [&](const auto& use) { return names(use.second); });
}

void StreamTracker::destroy(PoolLock& lock, Stream stream, const Quietly& quietly) {
  constexpr std::size_t most_retired = 8;
  if (const std::vector<Stamp> retired = order_.retired_streams(); retired.size() >= most_retired) {
    finish(lock, retired);
    free_settled();
  }
  // A search visits all blocks, so it must be worth it.
  constexpr std::size_t least_destroyed = 64;
  if (order_.destroyed() >= std::max(least_destroyed, 2 * destroyed_needed_)) {
    forget_destroyed();
    destroyed_needed_ = order_.destroyed();
  }
  if (!knows(stream.id)) {
    order_.destroy(stream.id);
    return;
  }
  StreamEvents events;
  UnlockedCall call(lock, [&]() noexcept { keep_or_discard(lock, events); });
  begin_event(events, stream.id);
  call([&] { events.front().id = context_.memory->record_event(stream); });
  ++context_.accounts.events_recorded;
  const std::uint64_t retired = order_.next_retired();
  arenas_.expect(retired);
  arenas_.expect(StreamOrder::idle);
  quietly([&] {
    order_.retire(events);
    rename(stream.id, retired);
  });
}

void StreamTracker::forget_destroyed() noexcept {
  const auto needed = [](const Arena& arena) { return arena.has_live_block_from(StreamOrder::idle); };
  if (std::ranges::none_of(arenas_, needed)) order_.forget_destroyed();
}

void StreamTracker::begin_event(StreamEvents& events, std::uint64_t stream) {
  events.push_back(order_.begin_event(stream));
  new_ticket_(stream, order_.now(stream));
}

std::size_t StreamTracker::bookkeeping_bytes() const {
  const auto node = 2 * sizeof(void*);  // overhead of a list or table node
  std::size_t bytes = order_.bookkeeping_bytes() + pending_.bookkeeping_bytes() + uses_.bucket_count() * sizeof(void*);
  for (const auto& use : uses_) bytes += node + sizeof(use) + use.second.capacity() * sizeof(Stamp);
  return bytes;
}

void StreamTracker::tidy() noexcept {
  forget_destroyed();
  order_.tidy();
  if (uses_.empty()) decltype(uses_)().swap(uses_);
}

}  // namespace poolgrad
