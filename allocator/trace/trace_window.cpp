#include "allocator/trace/trace_window.h"

#include <algorithm>
#include <utility>

#include "allocator/trace/internal/pool_state.h"

namespace poolgrad {

namespace {

// Which events [from, to) stay, found from behind; `state`, that at `to`, becomes that at `from`.
std::vector<char> select(const Trace& trace, std::size_t from, std::size_t to, std::uint64_t min_size, PoolState& state,
                         WindowedTrace& result) {
  std::vector<char> keep(to - from, 1);
  const auto drop_frees_of = [&](const PoolState::Held& held) {
    if (held.free_requested != PoolState::none) keep[held.free_requested - from] = 0;
    if (held.free_completed != PoolState::none) keep[held.free_completed - from] = 0;
  };
  const auto is_small = [&](const PoolState::Held& held) {
    return held.block.requested < min_size && held.free_completed != PoolState::none;
  };
  PoolState::Held ended;
  for (std::size_t i = to; i-- > from;) {
    if (!state.undo(trace.events[i], i, &ended)) {
      keep[i - from] = 0;
      ++result.contradictions;
    } else if (trace.events[i].kind == TraceKind::allocate && is_small(ended)) {
      keep[i - from] = 0;
      drop_frees_of(ended);
    }
  }
  state.for_each_held([&](const PoolState::Held& held) {
    if (is_small(held))
      drop_frees_of(held);
    else
      result.before.push_back(held.block);
  });
  std::sort(result.before.begin(), result.before.end(),
            [](const BlockSnapshot& a, const BlockSnapshot& b) { return a.address < b.address; });
  result.reserved_before = state.committed_bytes();
  return keep;
}

}  // namespace

WindowedTrace cut_trace(const Trace& trace, const TraceWindow& window) {
  const std::size_t to = std::min(window.to, trace.events.size());
  const std::size_t from = std::min(window.from, to);

  WindowedTrace result;
  Trace& cut = result.trace;
  cut.device = trace.device;
  cut.start_us = trace.start_us;
  cut.lost = trace.lost + from;
  cut.settings = trace.settings;
  cut.streams = trace.streams;
  cut.scopes = trace.scopes;
  cut.locations = trace.locations;
  if (cut.streams.empty()) cut.streams.push_back(0);
  if (cut.scopes.empty()) cut.scopes.emplace_back();
  if (cut.locations.empty()) cut.locations.emplace_back();

  PoolState state(trace);
  for (std::size_t i = trace.events.size(); i-- > to;)
    if (!state.undo(trace.events[i], i)) ++result.contradictions;
  cut.blocks = state.blocks();
  // Indices behind `to` mean nothing to the events before it.
  const std::vector<char> keep = [&] {
    if (to == trace.events.size()) return select(trace, from, to, window.min_size, state, result);
    Trace end;
    end.streams = cut.streams;
    end.scopes = cut.scopes;
    end.blocks = cut.blocks;
    PoolState state_at_end(end);
    return select(trace, from, to, window.min_size, state_at_end, result);
  }();

  cut.events.reserve(static_cast<std::size_t>(std::count(keep.begin(), keep.end(), 1)));
  std::uint64_t time = 0;
  for (std::size_t i = from; i < to; ++i) {
    if (keep[i - from] == 0) continue;
    TraceEvent& event = cut.events.emplace_back(trace.events[i]);
    event.time = time = std::max(time, event.time);
    if (event.stream >= cut.streams.size()) event.stream = 0;
    if (event.scope >= cut.scopes.size()) event.scope = 0;
    if (event.location >= cut.locations.size()) event.location = 0;
    if (static_cast<std::size_t>(event.category) >= category_count) event.category = Category::unknown;
  }
  return result;
}

}  // namespace poolgrad
