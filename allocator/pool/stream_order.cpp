#include "allocator/pool/stream_order.h"

#include <algorithm>
#include <new>
#include <utility>

namespace poolgrad {

void note_latest(std::vector<Stamp>& stamps, Stamp stamp) {
  const auto known = std::ranges::lower_bound(stamps, stamp.stream, {}, &Stamp::stream);
  if (known == stamps.end() || known->stream != stamp.stream) {
    stamps.insert(known, stamp);
  } else {
    known->ticket = std::max(known->ticket, stamp.ticket);
  }
}

StreamOrder::State& StreamOrder::state(std::uint64_t stream) {
  const auto at = std::ranges::lower_bound(states_, stream, {}, &State::stream);
  if (at != states_.end() && at->stream == stream) return *at;
  return *states_.insert(at, State{.stream = stream, .ticket = first_ticket_, .clock = {}});
}

StreamEvent StreamOrder::begin_event(std::uint64_t stream) {
  State& earlier = state(stream);
  return {0, {stream, earlier.ticket++}, earlier.clock};
}

void StreamOrder::wait(std::uint64_t later, const StreamEvent& event) noexcept {
  try {
    std::vector<Stamp>& clock = state(later).clock;
    if (event.covers.stream != later) note_latest(clock, event.covers);
    // Both are sorted by stream, and there may be many.
    std::vector<Stamp> unknown;
    auto known = clock.begin();
    for (const Stamp& stamp : event.clock) {
      while (known != clock.end() && known->stream < stamp.stream) ++known;
      if (known != clock.end() && known->stream == stamp.stream) {
        known->ticket = std::max(known->ticket, stamp.ticket);
      } else if (stamp.stream != later && (!is_retired(stamp.stream) || find(stamp.stream) != nullptr)) {
        unknown.push_back(stamp);
      }
    }
    if (unknown.empty()) return;
    const auto middle = clock.insert(clock.end(), unknown.begin(), unknown.end());
    std::ranges::inplace_merge(clock, middle, {}, &Stamp::stream);
  } catch (const std::bad_alloc&) {
    // On failure, each noted stamp is still valid.
  }
}

void StreamOrder::finish(const StreamEvent& event) noexcept {
  auto of = states_.begin();
  for (const Stamp& stamp : event.clock) {
    while (of != states_.end() && of->stream < stamp.stream) ++of;
    if (of != states_.end() && of->stream == stamp.stream) of->finished = std::max(of->finished, stamp.ticket);
  }
  if (find(event.covers.stream) == nullptr) return;
  State& own = state(event.covers.stream);
  own.finished = std::max(own.finished, event.covers.ticket);
}

bool StreamOrder::covered(std::uint64_t stream, Stamp stamp) const {
  if (stamp.stream == stream || stamp.ticket == 0) return true;
  const State* later = find(stream);
  if (later == nullptr) return false;
  const auto known = std::ranges::lower_bound(later->clock, stamp.stream, {}, &Stamp::stream);
  return known != later->clock.end() && known->stream == stamp.stream && known->ticket >= stamp.ticket;
}

bool StreamOrder::finished(Stamp stamp) const {
  if (stamp.ticket == 0 || stamp.stream == idle) return true;
  const State* of = find(stamp.stream);
  return of == nullptr ? is_retired(stamp.stream) : of->finished >= stamp.ticket;
}

bool StreamOrder::keep(StreamEvents& from, StreamEvents::iterator event) noexcept {
  const auto same =
      std::ranges::count(events_, event->covers.stream, [](const StreamEvent& known) { return known.covers.stream; });
  if (static_cast<std::size_t>(same) >= most_events) return false;
  events_.splice(events_.end(), from, event);
  return true;
}

bool StreamOrder::take_event(Stamp stamp, StreamEvents& into) noexcept {
  const auto covers = [&](const StreamEvent& event) {
    return event.covers.stream == stamp.stream && event.covers.ticket >= stamp.ticket;
  };
  auto first = events_.end();
  for (auto event = events_.begin(); event != events_.end(); ++event) {
    if (covers(*event) && (first == events_.end() || event->covers.ticket < first->covers.ticket)) first = event;
  }
  if (first == events_.end()) return false;
  into.splice(into.end(), events_, first);
  return true;
}

bool StreamOrder::lacks_event(Stamp stamp) const {
  if (finished(stamp) || is_retired(stamp.stream)) return false;
  std::size_t same = 0;
  for (const StreamEvent& event : events_) {
    if (event.covers.stream != stamp.stream) continue;
    if (event.covers.ticket >= stamp.ticket) return false;
    ++same;
  }
  return same < most_events;
}

void StreamOrder::retire(StreamEvents& events) {
  const auto event = std::prev(events.end());
  const std::uint64_t stream = event->covers.stream;
  destroyed_.insert(stream);
  State& gone = state(stream);
  free_name(stream, gone.ticket);
  gone.clock.clear();
  gone.stream = ++last_retired_;
  // Work on memory freed on the stream since the event was recorded was queued before the event, or is never queued.
  event->covers = {gone.stream, gone.ticket};
  const auto at = states_.begin() + (&gone - states_.data());
  std::rotate(at, std::next(at), states_.end());
  events_.splice(events_.end(), events, event);
}

void StreamOrder::destroy(std::uint64_t stream) {
  destroyed_.insert(stream);
  free_name(stream, now(stream));
  std::erase_if(states_, [&](const State& state) { return state.stream == stream; });
}

void StreamOrder::free_name(std::uint64_t stream, std::uint64_t ticket) noexcept {
  first_ticket_ = std::max(first_ticket_, ticket);
  for (State& state : states_) {
    std::erase_if(state.clock, [&](const Stamp& known) { return known.stream == stream; });
  }
}

std::size_t StreamOrder::bookkeeping_bytes() const {
  std::size_t bytes = states_.capacity() * sizeof(State) + destroyed_.bucket_count() * sizeof(void*) +
                      destroyed_.size() * 2 * sizeof(void*);
  for (const State& state : states_) bytes += state.clock.capacity() * sizeof(Stamp);
  const std::size_t node = 2 * sizeof(void*) + sizeof(StreamEvent);
  for (const StreamEvent& event : events_) bytes += node + event.clock.capacity() * sizeof(Stamp);
  return bytes;
}

void StreamOrder::tidy() noexcept {
  for (State& state : states_) {
    std::erase_if(state.clock, [&](const Stamp& known) { return finished(known); });
    state.clock.shrink_to_fit();
  }
  states_.shrink_to_fit();
}

std::optional<std::uint64_t> StreamOrder::take_finished_retired() noexcept {
  const auto done = [](const State& state) { return is_retired(state.stream) && state.finished >= state.ticket; };
  const auto found = std::ranges::find_if(states_, done);
  if (found == states_.end()) return std::nullopt;
  const std::uint64_t stream = found->stream;
  states_.erase(found);
  for (State& state : states_) {
    std::erase_if(state.clock, [&](Stamp known) { return known.stream == stream; });
  }
  return stream;
}

std::vector<Stamp> StreamOrder::retired_streams() const {
  std::vector<Stamp> stamps;
  for (const State& state : states_) {
    if (is_retired(state.stream)) stamps.push_back({state.stream, state.ticket});
  }
  return stamps;
}

}  // namespace poolgrad
