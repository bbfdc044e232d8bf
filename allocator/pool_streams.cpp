// Stream order: blocks that wait for another stream, blocks that go from one stream to another.
#include <algorithm>
#include <utility>

#include "allocator/error.h"
#include "allocator/pool.h"

namespace poolgrad {

namespace {

// One stamp per stream, the latest.
std::vector<Stamp> latest(const std::vector<Stamp>& stamps) {
  std::vector<Stamp> result;
  for (const Stamp& stamp : stamps) {
    const auto known = std::ranges::find(result, stamp.stream, &Stamp::stream);
    if (known == result.end()) {
      result.push_back(stamp);
    } else {
      known->ticket = std::max(known->ticket, stamp.ticket);
    }
  }
  return result;
}

std::vector<Stamp> stamps_of(const std::vector<Block*>& blocks) {
  std::vector<Stamp> stamps;
  for (const Block* block : blocks) stamps.push_back({block->stream, block->ticket});
  return stamps;
}

}  // namespace

bool Pool::is_behind(std::uint64_t stream, Stamp stamp) const {
  return order_.covered(stream, stamp) || order_.finished(stamp);
}

void Pool::keep_or_discard(Lock& lock, const std::vector<StreamEvent>& events) {
  std::vector<EventId> discarded;
  for (const StreamEvent& event : events) {
    const bool useful = StreamOrder::is_retired(event.covers.stream) || !config_.deterministic;
    if (event.id != 0 && !(useful && order_.keep(event))) discarded.push_back(event.id);
  }
  if (discarded.empty()) return;
  lock.unlock();
  for (const EventId event : discarded) memory_->discard_event(event);
  lock.lock();
}

bool Pool::settle(Lock& lock, std::optional<std::uint64_t> later, const std::vector<Stamp>& stamps) {
  std::vector<StreamEvent> events;
  bool settled = true;
  for (const Stamp& stamp : latest(stamps)) {
    if (later ? is_behind(*later, stamp) : order_.finished(stamp)) continue;
    if (std::optional<StreamEvent> event = order_.take_event(stamp)) {
      events.push_back(*std::move(event));
    } else if (StreamOrder::is_retired(stamp.stream)) {
      settled = false;  // another thread is asking about its only event
    } else {
      events.push_back(begin_event(stamp.stream));
    }
  }
  if (events.empty()) return settled;
  begin_device_call();
  lock.unlock();
  std::vector<StreamEvent> passed;
  std::vector<StreamEvent> unspent;
  std::uint64_t recorded = 0;
  for (StreamEvent& event : events) {
    try {
      if (event.id == 0) {
        event.id = memory_->record_event(Stream{device_, event.covers.stream});
        ++recorded;
      }
      if (later) {
        memory_->stream_wait(Stream{device_, *later}, event.id);
        unspent.push_back(event);
      } else {
        memory_->synchronize(event.id);
      }
      passed.push_back(event);
    } catch (const Error&) {
      settled = false;
      if (event.id != 0) unspent.push_back(event);
    }
  }
  lock.lock();
  statistics_.events_recorded += recorded;
  for (const StreamEvent& event : passed) {
    if (later) {
      order_.wait(*later, event);
    } else {
      order_.finish(event);
    }
  }
  keep_or_discard(lock, unspent);
  if (!later) forget_finished_streams();
  end_device_call();
  return settled;
}

void Pool::forget_finished_streams() {
  for (const std::uint64_t stream : order_.take_finished_retired()) rename_stream(stream, StreamOrder::idle);
}

void Pool::rename_stream(std::uint64_t from, std::uint64_t to) {
  for (Arena& arena : arenas_) arena.rename_stream(from, to);
  for (Pending& pending : pending_) {
    for (Stamp& stamp : pending.stamps) {
      if (stamp.stream == from) stamp.stream = to;
    }
  }
  for (auto& [block, streams] : uses_) std::ranges::replace(streams, from, to);
}

void Pool::free_block(Block* block, Stream stream) {
  stamp(block);
  const bool own = block->stream == stream.id && !block->used_elsewhere;
  std::vector<Stamp> stamps;
  const auto waits_for = [&](std::uint64_t other) {
    const Stamp stamp{other, order_.now(other)};
    if (other != block->stream && std::ranges::find(stamps, stamp) == stamps.end()) stamps.push_back(stamp);
  };
  waits_for(stream.id);
  if (block->used_elsewhere) {
    block->used_elsewhere = false;
    if (const auto uses = uses_.extract(block)) std::ranges::for_each(uses.mapped(), waits_for);
  }
  if (!stamps.empty()) {
    block->state = BlockState::pending;
    pending_.push_back({block, std::move(stamps)});
    return;
  }
  if (own) {
    subtract_active(block->size);
  } else {
    completed(block);
  }
  arena_of(reinterpret_cast<void*>(block->address))->put(block);
}

std::size_t Pool::pending_bytes() const {
  std::size_t bytes = 0;
  for (const Pending& pending : pending_) bytes += pending.block->size;
  return bytes;
}

void Pool::completed(const Block* block) {
  subtract_active(block->size);
  if (!trace_.running()) return;
  record_block(TraceKind::free_completed, block, Stream{device_, block->stream}, ThreadCaches::known(id_), {});
}

std::size_t Pool::free_settled() {
  std::size_t bytes = 0;
  std::vector<Pending> waiting;
  for (Pending& pending : std::exchange(pending_, {})) {
    Block* block = pending.block;
    bool ordered = false;
    std::erase_if(pending.stamps, [&](const Stamp& stamp) {
      if (order_.finished(stamp)) return true;
      const bool covered = order_.covered(block->stream, stamp);
      ordered = ordered || covered;
      return covered;
    });
    // What the owner waits for is behind the owner's present epoch, not the one in which the block was given back.
    if (ordered) block->ticket = order_.now(block->stream);
    if (!pending.stamps.empty()) {
      waiting.push_back(std::move(pending));
      continue;
    }
    bytes += block->size;
    completed(block);
    arena_of(reinterpret_cast<void*>(block->address))->put(block);
  }
  pending_.insert(pending_.begin(), std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end()));
  return bytes;
}

std::size_t Pool::poll_pending() {
  Lock lock(mutex_);
  if (config_.deterministic) return free_settled();
  std::vector<StreamEvent> events;
  for (const Pending& pending : pending_) {
    for (const Stamp& stamp : pending.stamps) {
      const auto covers = [&](const StreamEvent& event) { return event.covers.stream == stamp.stream; };
      if (order_.lacks_event(stamp) && std::ranges::none_of(events, covers)) {
        events.push_back(begin_event(stamp.stream));
      }
    }
  }
  for (StreamEvent& event : order_.take_events()) events.push_back(std::move(event));
  begin_device_call();
  lock.unlock();
  std::vector<StreamEvent> finished;
  std::vector<StreamEvent> unfinished;
  std::uint64_t recorded = 0;
  for (StreamEvent& event : events) {
    bool done = false;
    try {
      if (event.id == 0) {
        event.id = memory_->record_event(Stream{device_, event.covers.stream});
        ++recorded;
      }
      done = memory_->event_finished(event.id);
    } catch (const Error&) {
      // It is asked again next time.
    }
    (done ? finished : unfinished).push_back(event);
  }
  lock.lock();
  statistics_.events_recorded += recorded;
  for (const StreamEvent& event : finished) order_.finish(event);
  keep_or_discard(lock, unfinished);
  forget_finished_streams();
  end_device_call();
  return free_settled();
}

std::size_t Pool::synchronise_pending() {
  Lock lock(mutex_);
  std::vector<Stamp> stamps;
  for (const Pending& pending : pending_) stamps.insert(stamps.end(), pending.stamps.begin(), pending.stamps.end());
  if (!stamps.empty()) ++statistics_.num_sync_all_streams;
  settle(lock, std::nullopt, stamps);
  return free_settled();
}

std::size_t Pool::take_from_other_streams(Need& need) {
  Lock lock(mutex_);
  return take_from_other_streams(lock, need, arena_for(need.tag));
}

std::size_t Pool::take_from_other_streams(Lock& lock, Need& need, Arena& arena) {
  const std::uint64_t stream = need.stream.id;
  const auto ready = [&](const Block* block) { return is_behind(stream, {block->stream, block->ticket}); };
  Block* block = arena.take_from_other_streams(need.size, need.alignment, stream, ready);
  if (block == nullptr) return take_pending(lock, need, arena);
  if (!settle(lock, stream, stamps_of({block}))) {
    arena.put(block);
    return 0;
  }
  need.block = arena.carve(block, need.size, need.alignment);
  need.block->stream = stream;
  return need.block->size;
}

std::size_t Pool::take_pending(Lock& lock, Need& need, Arena& arena) {
  auto best = pending_.end();
  for (auto pending = pending_.begin(); pending != pending_.end(); ++pending) {
    const Block* block = pending->block;
    if (!arena.owns(block->address) || !Arena::fits(block, need.size, need.alignment)) continue;
    if (best == pending_.end() || block->size < best->block->size) best = pending;
  }
  if (best == pending_.end()) return 0;
  Pending pending = std::move(*best);
  pending_.erase(best);
  Block* block = pending.block;
  block->state = BlockState::busy;
  std::vector<Stamp> stamps = pending.stamps;
  stamps.push_back({block->stream, block->ticket});
  if (!settle(lock, need.stream.id, stamps)) {
    block->state = BlockState::pending;
    pending_.push_back(std::move(pending));
    return 0;
  }
  completed(block);
  block->stream = need.stream.id;
  block->ticket = order_.now(block->stream);
  need.block = arena.carve(block, need.size, need.alignment);
  return need.block->size;
}

std::size_t Pool::take_across_streams(Need& need) {
  Lock lock(mutex_);
  return take_across_streams(lock, need, arena_for(need.tag));
}

std::size_t Pool::take_across_streams(Lock& lock, Need& need, Arena& arena) {
  const std::vector<Block*> run = arena.take_across_streams(need.size, need.alignment);
  if (run.empty()) return 0;
  if (!settle(lock, need.stream.id, stamps_of(run))) {
    for (Block* block : run) arena.put(block);
    return 0;
  }
  Block* block = arena.join(run);
  block->stream = need.stream.id;
  block->ticket = order_.now(block->stream);
  need.block = arena.carve(block, need.size, need.alignment);
  return need.block->size;
}

void Pool::check_stream(const char* function, Stream stream) const {
  if (stream.device == device_) return;
  throw DeviceError("[" + std::string(function) + "] the stream belongs to " + to_string(stream.device) +
                    ", the pool to " + to_string(device_));
}

void Pool::use(void* pointer, Stream stream) {
  check_stream("use", stream);
  const std::lock_guard lock(mutex_);
  Block* block = live_block(pointer);
  if (block == nullptr) {
    throw ValueError("[use] not the start of a live block of the pool of " + to_string(device_));
  }
  if (stream.id == block->stream) return;
  block = leave_plan(block);
  std::vector<std::uint64_t>& streams = uses_[block];
  if (std::ranges::find(streams, stream.id) == streams.end()) streams.push_back(stream.id);
  block->used_elsewhere = true;
  if (trace_.running()) record_block(TraceKind::stream_use, block, stream, ThreadCaches::known(id_), {});
}

void Pool::order(Stream later, Stream earlier) {
  check_stream("order", later);
  check_stream("order", earlier);
  if (later == earlier) return;
  Lock lock(mutex_);
  StreamEvent event = begin_event(earlier.id);
  lock.unlock();
  event.id = memory_->record_event(earlier);
  try {
    memory_->stream_wait(later, event.id);
  } catch (const Error&) {
    memory_->discard_event(event.id);
    throw;
  }
  lock.lock();
  ++statistics_.events_recorded;
  order_.wait(later.id, event);
  // The caller has said that the uses so far are over before whatever the owner does next.
  for (auto& [block, streams] : uses_) {
    if (block->stream == later.id) std::erase(streams, earlier.id);
  }
  if (trace_.running()) {
    record({.address = trace_stream(earlier.id), .stream = trace_stream(later.id), .kind = TraceKind::stream_order});
  }
  keep_or_discard(lock, {event});
}

void Pool::stream_destroyed(Stream stream) {
  check_stream("stream_destroyed", stream);
  constexpr std::size_t most_retired = 8;
  Lock lock(mutex_);
  drain_magazines_of(stream.id);
  drop_plan(false);
  if (const std::vector<Stamp> retired = order_.retired_streams(); retired.size() >= most_retired) {
    settle(lock, std::nullopt, retired);
    free_settled();
  }
  const auto waits = [&](const Stamp& stamp) { return stamp.stream == stream.id; };
  const bool known =
      arenas_[0].knows_stream(stream.id) || arenas_[1].knows_stream(stream.id) ||
      std::ranges::any_of(pending_, [&](const Pending& p) { return std::ranges::any_of(p.stamps, waits); }) ||
      std::ranges::any_of(
          uses_, [&](const auto& use) { return std::ranges::find(use.second, stream.id) != use.second.end(); });
  if (!known) {
    order_.restart(stream.id);
    return;
  }
  StreamEvent event = begin_event(stream.id);
  lock.unlock();
  event.id = memory_->record_event(stream);
  lock.lock();
  ++statistics_.events_recorded;
  rename_stream(stream.id, order_.retire(event));
}

}  // namespace poolgrad
