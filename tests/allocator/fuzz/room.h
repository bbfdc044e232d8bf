// Decides whether a refused request could have been served.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "tests/allocator/fuzz/shadow.h"
#include "tests/allocator/fuzz/watching_memory.h"

namespace poolgrad::testing {

/// The committed pieces that hold a live block; the device could get back all others.
class PinnedMemory {
 public:
  PinnedMemory(const Shadow& shadow, const WatchingMemory& watch) {
    auto live = shadow.live().begin();
    for (const auto& [start, end] : watch.pieces()) {
      while (live != shadow.live().end() && shadow.blocks().at(live->second).end() <= start) ++live;
      if (live == shadow.live().end()) break;
      if (live->first >= end) continue;
      pieces_[start] = end;
      bytes_ += end - start;
    }
  }
  std::size_t bytes() const { return bytes_; }

  /// Returns the bytes to commit, in pages of `granularity`, before [start, start + bytes) can be used.
  std::size_t missing(std::uintptr_t start, std::size_t bytes, std::size_t granularity) const {
    const std::uintptr_t from = start / granularity * granularity;
    const std::uintptr_t to = (start + bytes + granularity - 1) / granularity * granularity;
    std::size_t covered = 0;
    auto piece = pieces_.upper_bound(from);
    if (piece != pieces_.begin()) --piece;
    for (; piece != pieces_.end() && piece->first < to; ++piece) {
      if (piece->second > from) covered += std::min(piece->second, to) - std::max(piece->first, from);
    }
    return to - from - covered;
  }

 private:
  std::map<std::uintptr_t, std::uintptr_t> pieces_;
  std::size_t bytes_ = 0;
};

/// Says how `bytes` could be allocated within `limit`, or returns an empty value. Candidates are new pages or a gap
/// between live blocks, after every piece without live blocks is released.
inline std::optional<std::string> room_for(std::size_t bytes, std::size_t alignment, std::size_t limit,
                                           const Shadow& shadow, const WatchingMemory& watch) {
  const std::size_t granularity = watch.granularity();
  if (bytes > limit) return std::nullopt;
  const PinnedMemory pinned(shadow, watch);
  const auto fits = [&](std::size_t missing) { return pinned.bytes() + missing <= limit; };
  const auto numbers = [&](std::size_t missing) {
    return std::to_string(pinned.bytes()) + " bytes are pinned, " + std::to_string(missing) + " more are needed of " +
           std::to_string(limit);
  };
  // Windows are aligned to the granularity only.
  const std::size_t slack = alignment > granularity ? alignment - granularity : 0;
  const std::size_t fresh = (bytes + granularity - 1) / granularity * granularity;
  if (slack == 0 && fits(fresh)) return "in pages of its own: " + numbers(fresh);
  for (const auto& [window, end] : watch.windows()) {
    std::uintptr_t gap = window;
    auto live = shadow.live().lower_bound(window);
    while (gap < end) {
      const bool last = live == shadow.live().end() || live->first >= end;
      const std::uintptr_t gap_end = last ? end : live->first;
      if (gap_end - gap >= bytes) {
        const std::uintptr_t first = (gap + alignment - 1) / alignment * alignment;
        const std::uintptr_t second = (gap_end - bytes) / alignment * alignment;
        for (const std::uintptr_t start : {first, second}) {
          if (start < gap || start + bytes > gap_end) continue;
          const std::size_t missing = pinned.missing(start, bytes, granularity);
          if (missing == 0 && fits(missing)) {
            return "in a gap of " + std::to_string(gap_end - gap) + " bytes at " + std::to_string(start - window) +
                   " of its window: " + numbers(missing);
          }
        }
      }
      if (last) break;
      gap = shadow.blocks().at(live->second).end();
      ++live;
    }
  }
  return std::nullopt;
}

}  // namespace poolgrad::testing
