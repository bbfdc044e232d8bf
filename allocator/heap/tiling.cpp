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
  split(block, size, rest);
  return rest;
}

void Tiling::split(Block* block, std::size_t size, Block* rest) noexcept {
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->window = block->window;
  rest->stream = block->stream;
  rest->epoch = block->epoch;
  rest->ticket = block->ticket;
  rest->state = block->state;
  block->link_rest(rest, size);
}

Block* Tiling::join(const std::vector<Block*>& blocks) {
  for (std::size_t i = 1; i < blocks.size(); ++i) absorb_next(blocks.front());
  return blocks.front();
}

std::optional<Block> Tiling::containing(std::uintptr_t address) const {
  const Window* window = window_of(address);
  if (window == nullptr) return std::nullopt;
  const Block* block = window->first;
  while (block->end() <= address) block = block->next;
  std::optional<Block> found;
  for_each_of(block, [&](const Block& one) {
    if (one.address <= address && address < one.end()) found = one;
  });
  return found;
}

bool Tiling::has_live_block_from(std::uint64_t stream) const {
  bool found = false;
  for (const auto& window : windows_) {
    for (const Block* block = window->first; block != nullptr && !found; block = block->next) {
      if (block->state != BlockState::live && block->state != BlockState::busy) continue;
      for_each_stream_of(block, [&](std::uint64_t one) { found |= one >= stream; });
    }
  }
  return found;
}

// The working state of one packing pass, region by region.
struct Tiling::Packing {
  Packed& packed;
  std::vector<Block*> loose;   // live blocks to pack
  std::vector<Block*> pieces;  // and nodes of packed ones, in address order
  std::vector<LiveBlock> blocks;

  // Whether a run of packed blocks continues from one piece to the next.
  static bool joined(const Block* piece, const Block* next) { return piece->next == next; }
};

void Tiling::pack(const std::function<bool(const Block*)>& may_pack, Packed& packed) {
  Packing packing{packed, {}, {}, {}};
  for (const auto& window : windows_) {
    LiveMap& live = window->live;
    const auto offset = [&](const Block* block) { return block->address - window->address; };
    for (Block* block = window->first; block != nullptr;) {
      const std::size_t region = live.region_of(offset(block));
      packing.loose.clear();
      for (; block != nullptr && live.region_of(offset(block)) == region; block = block->next) {
        if (may_pack(block) && live.find(offset(block)) == block) packing.loose.push_back(block);
      }
      if (!packing.loose.empty()) pack(*window, region, packing);
    }
    live.trim();
  }
  for (const auto& window : former_windows_) window->live.trim();
}

void Tiling::pack(Window& window, std::size_t region, Packing& packing) {
  LiveMap& live = window.live;
  auto& [done, loose, pieces, blocks] = packing;
  PackedBlocks* const known = live.packed(region);
  pieces.clear();
  blocks.clear();
  const auto add = [&](Block* piece) {
    pieces.push_back(piece);
    for_each_of(piece, [&](const Block& block) { blocks.push_back(LiveBlock::of(block)); });
  };
  auto next = loose.begin();
  const auto add_node = [&](Block* node) {
    while (next != loose.end() && (*next)->address < node->address) add(*next++);
    add(node);
  };
  if (known != nullptr) tree_walk(known->nodes, add_node);
  std::for_each(next, loose.end(), add);
  std::size_t runs = 1;
  for (std::size_t i = 1; i < pieces.size(); ++i) runs += !Packing::joined(pieces[i - 1], pieces[i]);

  done.touched += blocks.size();
  // Allocate first: the steps below must not throw.
  PackedBlocks::Owner packed = PackedBlocks::make(blocks, window.address + region, live.granule_bits());
  const std::size_t saved = (pieces.size() - runs) * sizeof(Block) + loose.size() * LiveMap::bytes_each +
                            (known != nullptr ? known->bytes() : 0);
  if (packed->bytes() >= saved) return;
  store_.reserve_together(runs);
  live.expect_packed();

  done.blocks += loose.size();
  for (const Block* block : loose) live.clear(block->address - window.address);
  for (auto first = pieces.begin(); first != pieces.end();) {
    auto last = first;
    while (last + 1 != pieces.end() && Packing::joined(*last, *(last + 1))) ++last;
    Block* node = *first;
    if (first != last || node->packed == nullptr) {
      // A new node, so that nodes that stay are close together and other chunks become empty.
      node = store_.make_last();
      node->address = (*first)->address;
      node->size = (*last)->end() - node->address;
      node->state = BlockState::live;
      node->window = &window;
      node->previous = (*first)->previous;
      node->next = (*last)->next;
      (node->previous != nullptr ? node->previous->next : window.first) = node;
      if (node->next != nullptr) node->next->previous = node;
      for (auto piece = first; piece <= last; ++piece) store_.recycle(*piece);
    }
    node->packed = packed.get();
    packed->add_node(node);
    first = last + 1;
  }
  live.set_packed(region, std::move(packed));
}

bool Tiling::pack_again(Block* block) {
  LiveMap& live = block->window->live;
  const std::size_t offset = block->address - block->window->address;
  PackedBlocks* packed = live.packed(offset);
  if (packed == nullptr) return false;
  const std::size_t index = packed->lower_bound(block->address);
  if (!packed->has_place_for(*block, index)) return false;
  if (const LiveBlock noted = LiveBlock::of(*block); !packed->put(index, noted)) {
    PackedBlocks::Owner larger = packed->with_room_for(index, noted);
    if (larger == nullptr || !larger->put(index, noted)) return false;
    packed = larger.get();
    const auto tell = [&](Block* node) { node->packed = packed; };
    tree_walk(packed->nodes, tell);
    live.set_packed(offset, std::move(larger));
  }
  live.clear(offset);
  block->requested = 0;
  block->number = 0;
  block->tag = {};
  block->stream = 0;
  block->epoch = block->ticket = 0;
  const auto goes_on = [&](const Block* node) {
    return node != nullptr && node->state == BlockState::live && node->packed == packed;
  };
  if (goes_on(block->previous)) {
    block = block->previous;
    absorb_next(block);
  } else {
    block->packed = packed;
    packed->add_node(block);
  }
  if (goes_on(block->next)) {
    packed->remove_node(block->next);
    absorb_next(block);
  }
  return true;
}

Tiling::Place Tiling::look_up(std::uintptr_t address) const noexcept {
  const Window* window = window_of(address);
  PackedBlocks* packed = window == nullptr ? nullptr : window->live.packed(address - window->address);
  if (packed == nullptr) return {};
  const std::size_t index = packed->lower_bound(address);
  if (index == packed->size() || packed->address(index) != address) return {};
  return {packed, index, packed->node_of(address)};
}

Block Tiling::copy_of(const Block* node, std::size_t index) {
  const LiveBlock live = node->packed->at(index, node);
  Block block = *node;
  block.address = live.address;
  block.size = live.size;
  block.requested = live.requested;
  block.number = live.number;
  block.tag = live.tag;
  block.stream = live.stream;
  block.packed = nullptr;
  return block;
}

std::optional<Block> Tiling::live_copy(std::uintptr_t address) const {
  if (const Block* block = live(address)) {
    return block->state == BlockState::live ? std::optional(*block) : std::nullopt;
  }
  const Place packed = look_up(address);
  if (packed.node == nullptr) return std::nullopt;
  return copy_of(packed.node, packed.index);
}

void Tiling::expect_taken_out(std::uintptr_t address) {
  store_.reserve(2);
  if (const Place packed = look_up(address); packed.node != nullptr) packed.node->window->live.expect_more();
}

Block* Tiling::take_out(std::uintptr_t address) noexcept {
  auto [packed, index, block] = look_up(address);
  if (block == nullptr) return nullptr;
  const LiveBlock live = packed->at(index, block);
  const bool first = live.address == block->address;
  const bool last = live.end() == block->end();
  if (store_.spares() < std::size_t{!first} + std::size_t{!last}) return nullptr;
  if (first) {
    packed->remove_node(block);
  } else {
    Block* const before = block;
    block = store_.make_last();
    split(before, live.address - before->address, block);
  }
  if (!last) {
    Block* rest = store_.make_last();
    split(block, live.size, rest);
    rest->packed = packed;
    packed->add_node(rest);
  }
  block->packed = nullptr;
  block->requested = live.requested;
  block->number = live.number;
  block->tag = live.tag;
  block->stream = live.stream;
  if (!packed->forget_one()) block->window->live.set_packed(address - block->window->address, nullptr);
  return block;
}

}  // namespace poolgrad
