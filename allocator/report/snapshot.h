// The location and state of each byte of a pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "allocator/memory_scope.h"

namespace poolgrad {

enum class BlockState : std::uint8_t {
  uncommitted,  // addresses without memory behind them
  free,         // cached
  live,         // allocated
  pending,      // freed, but another stream may still use it
  busy,         // owned by a thread in a device call for it
  magazine      // cached by the thread that freed it; merges with neighbors only when the magazine is drained
};

inline std::string_view to_string(BlockState state) {
  constexpr std::array<std::string_view, 6> names = {"uncommitted", "free", "live", "pending", "busy", "magazine"};
  const auto index = static_cast<std::size_t>(state);
  return index < names.size() ? names[index] : "invalid";
}

/// One block of a pool. The last three fields are those of the allocation, for live and pending blocks only.
struct BlockSnapshot {
  std::uintptr_t address = 0;
  std::size_t size = 0;
  BlockState state = BlockState::free;
  std::uint64_t stream = 0;
  std::uint64_t epoch = 0;   // for free and pending blocks: the tick of the newest free in it
  std::size_t window = 0;    // blocks tile the address range of their window
  std::uint64_t number = 0;  // allocations are counted from 1; 0 for scratch of kernels
  std::size_t requested = 0;
  Tag tag = {};

  /// Whether a caller may still access it.
  bool is_held() const { return state == BlockState::live || state == BlockState::pending; }
};

}  // namespace poolgrad
