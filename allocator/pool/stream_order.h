// Which stream may reuse which memory, without asking the device: tickets, events and vector clocks.
//
// Time on a stream is cut into epochs, counted by its ticket. Memory that is given back carries a stamp (stream,
// ticket), which costs one load. When an event is recorded, a new epoch starts first: the event covers all stamps of
// earlier epochs. A stream that waits for an event has these stamps, and all that the event's stream had waited for,
// behind it: that is its clock. So memory may be reused by stream B if it was B's own, or if B's clock covers its
// stamp, or if the event that covers it is known to be finished; otherwise B has to wait for an event now.
//
// Pure bookkeeping: the pool guards it with its mutex and makes the calls to the device.
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

/// The work of a stream up to and including the epoch `ticket`. Ticket 0 is no work at all.
struct Stamp {
  std::uint64_t stream = 0;
  std::uint64_t ticket = 0;

  friend bool operator==(const Stamp&, const Stamp&) = default;
};

/// Notes in a list with one stamp for each stream, in their order, that all work up to `stamp` belongs to it.
void note_latest(std::vector<Stamp>& stamps, Stamp stamp);

/// An event and what is known once it is finished. `id` 0: not recorded.
struct StreamEvent {
  EventId id = 0;
  Stamp covers;
  std::vector<Stamp> clock;  // what the stream itself had waited for
};

/// Events go from list to list without being copied, so that none is ever lost for want of memory.
using StreamEvents = std::list<StreamEvent>;

class StreamOrder {
 public:
  /// Memory of this stream can be used by all others: nobody's work is left on it.
  static constexpr std::uint64_t idle = std::uint64_t{1} << 63;
  /// Events kept per stream; as many as the device is allowed to be behind before nothing new is asked of it.
  static constexpr std::size_t most_events = 8;

  /// The present ticket of a stream, from 1.
  std::uint64_t now(std::uint64_t stream) const {
    const State* of = find(stream);
    return of != nullptr ? of->ticket : first_ticket_;
  }
  /// What an event covers that is recorded on `stream` after this call. Later stamps have a larger ticket.
  StreamEvent begin_event(std::uint64_t stream);
  /// `later` waits for the event. What there is no memory to note will be waited for again.
  void wait(std::uint64_t later, const StreamEvent& event) noexcept;
  /// The event is finished, and so is all that it covers.
  void finish(const StreamEvent& event) noexcept;

  /// Whether the work of the stamp is before whatever `stream` does from now on.
  bool covered(std::uint64_t stream, Stamp stamp) const;
  /// Whether the work of the stamp is known to be done.
  bool finished(Stamp stamp) const;

  /// Events that can be asked later whether they are finished belong here, until they are taken. False, leaving it
  /// where it is, if the stream has enough of them.
  bool keep(StreamEvents& from, StreamEvents::iterator event) noexcept;
  /// All events, to the end of `into`.
  void take_events(StreamEvents& into) noexcept { into.splice(into.end(), events_); }
  /// The first event that covers the stamp, to the end of `into`; false if there is none.
  bool take_event(Stamp stamp, StreamEvents& into) noexcept;
  bool has_events() const { return !events_.empty(); }
  /// Whether an event should be recorded so that the stamp can be asked about.
  bool lacks_event(Stamp stamp) const;

  /// The stream of the last of `events` is destroyed and its name becomes free: its stamps belong to next_retired()
  /// from now on, on which no event can be recorded, and the event, taken from the list, covers them all.
  void retire(StreamEvents& events);
  std::uint64_t next_retired() const { return last_retired_ + 1; }
  static bool is_retired(std::uint64_t stream) { return stream > idle; }
  /// A retired stream that is finished, which is forgotten; none if there is none.
  std::optional<std::uint64_t> take_finished_retired() noexcept;
  std::vector<Stamp> retired_streams() const;
  /// The stream is destroyed and nothing of it is left. Work that is named after it is over until revive().
  void destroy(std::uint64_t stream);
  bool is_destroyed(std::uint64_t stream) const { return !destroyed_.empty() && destroyed_.contains(stream); }
  /// How many are, and that nobody will ask about one of them.
  std::size_t destroyed() const { return destroyed_.size(); }
  void forget_destroyed() noexcept { decltype(destroyed_)().swap(destroyed_); }
  /// Bytes of the program's heap; gives back what is known of work that is over: finished() says so without it.
  std::size_t bookkeeping_bytes() const;
  void tidy() noexcept;
  /// A new stream has the name, or still the old one.
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
  /// The name may come again. Clocks and events that know it say nothing of its tickets from this one on.
  void free_name(std::uint64_t stream, std::uint64_t ticket) noexcept;

  std::vector<State> states_;  // of streams in use, in their order
  StreamEvents events_;
  std::uint64_t first_ticket_ = 1;  // of a stream that is not among them
  std::unordered_set<std::uint64_t> destroyed_;
  std::uint64_t last_retired_ = idle;
};

}  // namespace poolgrad
