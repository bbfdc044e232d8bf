// The stages of the emergency ladder: ids in traces, keys of statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace poolgrad {

/// Roughly in the order of execution: `stitch` comes before `commit`, and `offload` and `rematerialise` are merged by
/// price. Traces store the numbers.
enum class RungId : std::uint8_t {
  poll,           // poll events of pending frees
  other_streams,  // a block of another stream, behind an event if needed
  magazines,      // blocks in the magazines of threads
  coalesce,       // free neighbors of several streams
  commit,         // new pages within the budget
  stitch,         // scattered free pages mapped to one range of addresses
  release,        // cached pages, least recently used first
  synchronise,    // wait for pending frees
  borrow,         // from the other arena
  wait,           // for other threads in the middle of a free or a commit
  derived_cache,  // clients: caches that can be rebuilt
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
