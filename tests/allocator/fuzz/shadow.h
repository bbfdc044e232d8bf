// The reference for a pool: which addresses are live, and which stream used each free address last. It is deliberately
// simple.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/memory_scope.h"
#include "tests/allocator/fuzz/stream_clocks.h"

namespace poolgrad::testing {

struct ShadowBlock {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;   // as requested
  std::size_t extent = 0;  // usable
  std::size_t alignment = 0;
  std::uint32_t stream = 0;
  Category category = Category::unknown;
  unsigned char pattern = 0;
  bool orphaned = false;           // its stream was destroyed
  std::vector<std::size_t> lines;  // streams that may use it until it is freed, see StreamClocks
  std::vector<StreamUse> uses;     // by other streams, see CachingAllocator::use()

  std::uintptr_t end() const { return address + extent; }
};

class Shadow {
 public:
  explicit Shadow(StreamClocks& clocks) : clocks_(clocks) {}

  const std::map<std::uintptr_t, std::uint32_t>& live() const { return live_; }  // address to slot
  std::map<std::uint32_t, ShadowBlock>& blocks() { return blocks_; }
  const std::map<std::uint32_t, ShadowBlock>& blocks() const { return blocks_; }
  std::size_t requested() const { return requested_; }
  std::size_t requested(Category category) const { return by_category_[static_cast<std::size_t>(category)]; }

  /// Adds the block; returns an error, or "".
  std::string add(std::uint32_t slot, ShadowBlock block) {
    const std::string wrong = take(block.address, block.end(), block.stream);
    if (!wrong.empty()) return wrong;
    block.lines = {clocks_.line_of(block.stream)};
    count(block, block.bytes, 0);
    live_[block.address] = slot;
    blocks_[slot] = std::move(block);
    return "";
  }
  void remove(std::uint32_t slot, std::uint32_t freeing_stream) {
    const auto entry = blocks_.find(slot);
    ShadowBlock& block = entry->second;
    // A block freed under the name of its destroyed stream was not used by a new stream of that name.
    if (!(block.orphaned && clocks_.destroyed(freeing_stream))) {
      block.lines.push_back(clocks_.line_of(freeing_stream));
    }
    leave(block, block.address, block.end());
    count(block, 0, block.bytes);
    live_.erase(block.address);
    blocks_.erase(entry);
  }
  /// A live block now reaches to `extent`; returns an error, or "".
  std::string resize(std::uint32_t slot, std::size_t bytes, std::size_t extent) {
    ShadowBlock& block = blocks_.at(slot);
    if (extent > block.extent) {
      const std::string wrong = take(block.end(), block.address + extent, block.stream);
      if (!wrong.empty()) return wrong;
    } else {
      leave(block, block.address + extent, block.end());
    }
    count(block, bytes, block.bytes);
    block.bytes = bytes;
    block.extent = extent;
    return "";
  }
  /// Removes the memory from these addresses; returns an error if it is in use, or "".
  std::string release(std::uintptr_t start, std::uintptr_t end) {
    if (const auto slot = overlapping(start, end)) return "memory of live slot " + std::to_string(*slot);
    std::string wrong;
    visit_past(start, end, [&](StreamUse use) {
      if (!clocks_.finished(use)) wrong = "memory that a stream may still be using";
    });
    return wrong;
  }
  std::optional<std::uint32_t> overlapping(std::uintptr_t start, std::uintptr_t end) const {
    const auto after = live_.lower_bound(end);
    if (after == live_.begin()) return std::nullopt;
    const std::uint32_t slot = std::prev(after)->second;
    return blocks_.at(slot).end() > start ? std::optional(slot) : std::nullopt;
  }

 private:
  struct Past {
    std::uintptr_t end;
    std::vector<StreamUse> uses;
  };

  std::string take(std::uintptr_t start, std::uintptr_t end, std::uint32_t stream) {
    if (const auto slot = overlapping(start, end)) return "the block overlaps live slot " + std::to_string(*slot);
    std::string wrong;
    visit_past(start, end, [&](StreamUse use) {
      if (!clocks_.ordered(use, stream)) {
        wrong =
            "the block was used by another stream, whose work stream " + std::to_string(stream) + " does not wait for";
      }
    });
    return wrong;
  }
  void leave(const ShadowBlock& block, std::uintptr_t start, std::uintptr_t end) {
    if (start == end) return;
    std::vector<StreamUse> uses = block.uses;
    for (const std::size_t line : block.lines) uses.push_back(clocks_.use_line(line));
    past_[start] = {end, std::move(uses)};
  }
  // Calls the visitor with the earlier users of [start, end) and forgets them.
  template <class Visit>
  void visit_past(std::uintptr_t start, std::uintptr_t end, const Visit& visit) {
    auto at = past_.upper_bound(start);
    if (at != past_.begin() && std::prev(at)->second.end > start) --at;
    while (at != past_.end() && at->first < end) {
      for (const StreamUse use : at->second.uses) visit(use);
      const auto [from, past] = *at;
      at = past_.erase(at);
      if (from < start) past_[from] = {start, past.uses};
      if (past.end > end) past_[end] = past;
    }
  }
  void count(const ShadowBlock& block, std::size_t more, std::size_t less) {
    requested_ += more - less;
    by_category_[static_cast<std::size_t>(block.category)] += more - less;
  }

  StreamClocks& clocks_;
  std::map<std::uintptr_t, std::uint32_t> live_;
  std::map<std::uint32_t, ShadowBlock> blocks_;
  std::map<std::uintptr_t, Past> past_;  // disjoint, without live blocks
  std::size_t requested_ = 0;
  std::array<std::size_t, category_count> by_category_{};
};

}  // namespace poolgrad::testing
