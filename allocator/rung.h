// The rungs of the emergency ladder by name: ids in traces, keys of statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace poolgrad {

/// About in the order in which they are tried: `stitch` comes before `commit`, and `offload` and `rematerialise` are
/// merged by price. Traces have their numbers.
enum class RungId : std::uint8_t {
  poll,           // pending frees that are finished
  other_streams,  // a block of another stream, behind an event if need be
  magazines,      // what threads keep for themselves
  coalesce,       // free neighbours of several streams
  commit,         // new pages within the budget
  stitch,         // scattered free pages moved behind one run of addresses
  release,        // cached pages, least recently used first
  synchronise,    // wait for pending frees
  borrow,         // from the other arena
  wait,           // for other threads that are giving back or getting pages right now
  derived_cache,  // clients: what can be made again from what is there
  offload,        // clients: tensors to pinned host memory
  rematerialise,  // clients: tensors that can be computed again
  callback        // the user's
};
inline constexpr std::size_t rung_count = 14;

constexpr std::string_view to_string(RungId rung) {
  switch (rung) {
    case RungId::poll: return "poll pending frees";
    case RungId::other_streams: return "take from other streams";
    case RungId::magazines: return "drain magazines";
    case RungId::coalesce: return "coalesce streams";
    case RungId::commit: return "commit";
    case RungId::stitch: return "stitch";
    case RungId::release: return "release cached pages";
    case RungId::synchronise: return "synchronise pending frees";
    case RungId::borrow: return "borrow from the other arena";
    case RungId::wait: return "wait for other threads";
    case RungId::derived_cache: return "derived caches";
    case RungId::offload: return "offload";
    case RungId::rematerialise: return "rematerialise";
    case RungId::callback: return "callback";
  }
  return "invalid";
}

}  // namespace poolgrad
