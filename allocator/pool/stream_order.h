// Decides which stream may reuse which memory without asking the device, by tickets, events and vector clocks.
//
// A stream's time is divided into epochs, counted by its ticket. A free carries a stamp (stream, ticket), which costs
// one load. Recording an event first starts a new epoch: the event covers all stamps of earlier epochs. A stream that
// waits for an event has these stamps behind it, and all that the event's stream had waited for: this is its clock.
// Stream B may reuse memory if it was B's own, if B's clock covers its stamp, or if an event that covers it is known to
// be finished. Otherwise B must wait for an event now.
//
// Only bookkeeping: the pool guards it with its mutex and makes the device calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_set>
#include <vector>

#include "allocator/memory/device_memory.h"

namespace poolgrad {

/// The work of a stream up to and including the epoch `ticket`. Ticket 0: no work.
struct Stamp {
  std::uint64_t stream = 0;
  std::uint64_t ticket = 0;

  friend bool operator==(const Stamp&, const Stamp&) = default;
};

/// Adds all work up to `stamp` to a list with one stamp for each stream, sorted by stream.
void note_latest(std::vector<Stamp>& stamps, Stamp stamp);

/// An event and the work it covers. `id` 0: not recorded.
struct StreamEvent {
  EventId id = 0;
  Stamp covers;
  std::vector<Stamp> clock;  // the waits of the stream itself
};

/// Events move between lists without copies, so that none is lost for lack of memory.
using StreamEvents = std::list<StreamEvent>;

class StreamOrder {
 public:
  /// All streams can use memory of this stream: no work is left on it.
  static constexpr std::uint64_t idle = std::uint64_t{1} << 63;
  /// Events kept per stream: the number by which the device may lag before new polls stop.
  static constexpr std::size_t most_events = 8;

  /// The current ticket of a stream, from 1.
  std::uint64_t now(std::uint64_t stream) const {
    const State* of = find(stream);
    return of != nullptr ? of->ticket : first_ticket_;
  }
  /// Starts an epoch and returns an event for `stream`, to be recorded after this call. Later stamps have a larger
  /// ticket.
  StreamEvent begin_event(std::uint64_t stream);
  /// `later` waits for the event. Stamps that do not fit into memory are waited for again.
  void wait(std::uint64_t later, const StreamEvent& event) noexcept;
  /// Records that the event, and all work it covers, is finished.
  void finish(const StreamEvent& event) noexcept;

  /// Whether the work of the stamp precedes all later work of `stream`.
  bool covered(std::uint64_t stream, Stamp stamp) const;
  /// Whether the work of the stamp is known to be done.
  bool finished(Stamp stamp) const;

  /// Keeps an event for later polls. Returns false, leaving it in its list, if the stream has enough of them.
  bool keep(StreamEvents& from, StreamEvents::iterator event) noexcept;
  /// Moves all events to the end of `into`.
  void take_events(StreamEvents& into) noexcept { into.splice(into.end(), events_); }
  /// Moves the first event that covers the stamp to the end of `into`; false if there is none.
  bool take_event(Stamp stamp, StreamEvents& into) noexcept;
  bool has_events() const { return !events_.empty(); }
  /// Whether an event must be recorded to be able to poll the stamp.
  bool lacks_event(Stamp stamp) const;

  /// Retires the destroyed stream of the last of `events`: its stamps move to next_retired(), on which no event can be
  /// recorded. The event, taken from the list, covers them all.
  void retire(StreamEvents& events);
  std::uint64_t next_retired() const { return last_retired_ + 1; }
  static bool is_retired(std::uint64_t stream) { return stream > idle; }
  /// Removes a finished retired stream and returns it; none if there is none.
  std::optional<std::uint64_t> take_finished_retired() noexcept;
  std::vector<Stamp> retired_streams() const;
  /// Records that the stream is destroyed and all its work is done, until revive().
  void destroy(std::uint64_t stream);
  bool is_destroyed(std::uint64_t stream) const { return !destroyed_.empty() && destroyed_.contains(stream); }
  /// The number of destroyed streams; forgets them once no caller can ask about them.
  std::size_t destroyed() const { return destroyed_.size(); }
  void forget_destroyed() noexcept { decltype(destroyed_)().swap(destroyed_); }
  /// Heap bytes; drops finished work, for which finished() needs no record.
  std::size_t bookkeeping_bytes() const;
  void tidy() noexcept;
  /// A new or existing stream has this id.
  void revive(std::uint64_t stream) noexcept {
    if (!destroyed_.empty()) destroyed_.erase(stream);
  }

 private:
  struct State {
    std::uint64_t stream;
    std::uint64_t ticket = 1;
    std::uint64_t finished = 0;  // tickets up to this one
    std::vector<Stamp> clock;    // see note_latest()
  };

  State& state(std::uint64_t stream);
  const State* find(std::uint64_t stream) const {
    const auto at = std::ranges::lower_bound(states_, stream, {}, &State::stream);
    return at != states_.end() && at->stream == stream ? &*at : nullptr;
  }
  /// Releases the stream's id for reuse. Clocks and events that contain it do not cover its tickets from this one on.
  void free_name(std::uint64_t stream, std::uint64_t ticket) noexcept;

  std::vector<State> states_;  // of streams in use, sorted
  StreamEvents events_;
  std::uint64_t first_ticket_ = 1;  // of a stream not among them
  std::unordered_set<std::uint64_t> destroyed_;
  std::uint64_t last_retired_ = idle;
};

}  // namespace poolgrad
