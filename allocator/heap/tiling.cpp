#include "allocator/heap/tiling.h"

#include <algorithm>
#include <utility>

namespace poolgrad {

Block* Tiling::tile(std::uintptr_t address, std::size_t bytes, HandleMap handles) {
  windows_.reserve(windows_.size() + 1);
  std::unique_ptr<Window> window(new Window{.address = address,
                                            .size = bytes,
                                            .first = nullptr,
                                            .live = LiveMap(granule_, map_bytes_),
                                            .handles = std::move(handles),
                                            .ages = PageAges(address)});
  Block* hole = store_.make();
  hole->address = address;
  hole->size = bytes;
  hole->window = window.get();
  hole->state = BlockState::uncommitted;
  window->first = hole;
  window->older = newest_window_.load(std::memory_order_relaxed);
  windows_.push_back(std::move(window));
  newest_window_.store(windows_.back().get(), std::memory_order_release);
  return hole;
}

void Tiling::untile(Block* hole) noexcept {
  Window* const window = hole->window;
  window->size = 0;
  window->handles = HandleMap(window->address, 0, granule_, true);
  window->ages = PageAges(window->address);
  window->first = nullptr;
  store_.recycle(hole);
  const auto own = std::ranges::find(windows_, window, &std::unique_ptr<Window>::get);
  if (std::next(own) != windows_.end()) {
    (*std::next(own))->older = window->older;
  } else {
    newest_window_.store(window->older, std::memory_order_release);
  }
  former_windows_.push_back(std::move(*own));
  windows_.erase(own);
}

Block* Tiling::split(Block* block, std::size_t size) {
  Block* rest = store_.make();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->window = block->window;
  rest->stream = block->stream;
  rest->epoch = block->epoch;
  rest->ticket = block->ticket;
  rest->state = block->state;
  block->link_rest(rest, size);
  return rest;
}

Block* Tiling::join(const std::vector<Block*>& blocks) {
  for (std::size_t i = 1; i < blocks.size(); ++i) absorb_next(blocks.front());
  return blocks.front();
}

const Block* Tiling::containing(std::uintptr_t address) const {
  const Window* window = window_of(address);
  if (window == nullptr) return nullptr;
  const Block* block = window->first;
  while (block->end() <= address) block = block->next;
  return block;
}

bool Tiling::has_live_block_from(std::uint64_t stream) const {
  for (const auto& window : windows_) {
    for (const Block* block = window->first; block != nullptr; block = block->next) {
      if ((block->state == BlockState::live || block->state == BlockState::busy) && block->stream >= stream)
        return true;
    }
  }
  return false;
}

}  // namespace poolgrad
