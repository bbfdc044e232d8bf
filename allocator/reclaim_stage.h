// The stages of the reclaim policy: ids in traces, keys of statistics.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace poolgrad {

/// Roughly in the order of execution: `stitch` comes before `commit`, and `offload` and `rematerialise` are merged by
/// price. Traces store the numbers.
enum class ReclaimStageId : std::uint8_t {
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
inline constexpr std::size_t reclaim_stage_count = 14;

constexpr std::string_view to_string(ReclaimStageId stage) {
  switch (stage) {
    case ReclaimStageId::poll: return "poll pending frees";
    case ReclaimStageId::other_streams: return "take from other streams";
    case ReclaimStageId::magazines: return "drain magazines";
    case ReclaimStageId::coalesce: return "coalesce streams";
    case ReclaimStageId::commit: return "commit";
    case ReclaimStageId::stitch: return "stitch";
    case ReclaimStageId::release: return "release cached pages";
    case ReclaimStageId::synchronise: return "synchronise pending frees";
    case ReclaimStageId::borrow: return "borrow from the other arena";
    case ReclaimStageId::wait: return "wait for other threads";
    case ReclaimStageId::derived_cache: return "derived caches";
    case ReclaimStageId::offload: return "offload";
    case ReclaimStageId::rematerialise: return "rematerialise";
    case ReclaimStageId::callback: return "callback";
  }
  return "invalid";
}

}  // namespace poolgrad
