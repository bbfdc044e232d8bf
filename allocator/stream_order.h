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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/device_memory.h"

namespace poolgrad {

/// The work of a stream up to and including the epoch `ticket`. Ticket 0 is no work at all.
struct Stamp {
  std::uint64_t stream = 0;
  std::uint64_t ticket = 0;

  friend bool operator==(const Stamp&, const Stamp&) = default;
};

/// An event and what is known once it is finished. `id` 0: not recorded.
struct StreamEvent {
  EventId id = 0;
  Stamp covers;
  std::vector<Stamp> clock;  // what the stream itself had waited for
};

class StreamOrder {
 public:
  /// Memory of this stream can be used by all others: nobody's work is left on it.
  static constexpr std::uint64_t idle = std::uint64_t{1} << 63;
  /// Events kept per stream; as many as the device is allowed to be behind before nothing new is asked of it.
  static constexpr std::size_t most_events = 8;

  /// The present ticket of a stream, from 1.
  std::uint64_t now(std::uint64_t stream) const {
    for (const State& state : states_) {
      if (state.stream == stream) return state.ticket;
    }
    return 1;
  }
  /// What an event covers that is recorded on `stream` after this call. Later stamps have a larger ticket.
  StreamEvent begin_event(std::uint64_t stream);
  /// `later` waits for the event.
  void wait(std::uint64_t later, const StreamEvent& event);
  /// The event is finished, and so is all that it covers.
  void finish(const StreamEvent& event);

  /// Whether the work of the stamp is before whatever `stream` does from now on.
  bool covered(std::uint64_t stream, Stamp stamp) const;
  /// Whether the work of the stamp is known to be done.
  bool finished(Stamp stamp) const;

  /// Events that can be asked later whether they are finished belong here, until they are taken. False if the stream
  /// has enough of them.
  bool keep(const StreamEvent& event);
  std::vector<StreamEvent> take_events();
  /// The first event that covers the stamp; none if there is none.
  std::optional<StreamEvent> take_event(Stamp stamp);
  bool has_events() const { return !events_.empty(); }
  /// Whether an event should be recorded so that the stamp can be asked about.
  bool lacks_event(Stamp stamp) const;

  /// The stream of the event is destroyed and its name becomes free: its stamps belong to the name returned from now
  /// on, on which no event can be recorded, and the event covers them all.
  std::uint64_t retire(const StreamEvent& event);
  static bool is_retired(std::uint64_t stream) { return stream > idle; }
  /// Retired streams that are finished; they are forgotten.
  std::vector<std::uint64_t> take_finished_retired();
  std::vector<Stamp> retired_streams() const;
  /// The name is that of a new stream, which has waited for nothing. No stamps of the old one are left.
  void restart(std::uint64_t stream) { state(stream).clock.clear(); }

 private:
  struct State {
    std::uint64_t stream;
    std::uint64_t ticket = 1;
    std::uint64_t finished = 0;  // tickets up to this one
    std::vector<Stamp> clock;
  };

  State& state(std::uint64_t stream);
  const State* find(std::uint64_t stream) const;

  std::vector<State> states_;  // streams in use first seen first: few, so searched in a line
  std::vector<StreamEvent> events_;
  std::uint64_t last_retired_ = idle;
};

}  // namespace poolgrad
