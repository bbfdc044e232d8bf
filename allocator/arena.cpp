#include "allocator/arena.h"

#include <algorithm>

namespace poolgrad {

namespace {

std::uintptr_t round_up(std::uintptr_t value, std::size_t multiple) { return (value + multiple - 1) & ~(multiple - 1); }

std::uintptr_t round_down(std::uintptr_t value, std::size_t multiple) { return value & ~(multiple - 1); }

}  // namespace

void Arena::add_window(std::uintptr_t address, std::size_t bytes) {
  Block* hole = store_.make();
  auto window = std::make_unique<Window>(Window{address, bytes, hole, LiveMap(bytes, granule_)});
  hole->address = address;
  hole->size = bytes;
  hole->window = window.get();
  hole->state = BlockState::uncommitted;
  window->older = newest_window_.load(std::memory_order_relaxed);
  holes_.insert(hole);
  windows_.push_back(std::move(window));
  newest_window_.store(windows_.back().get(), std::memory_order_release);
}

BucketIndex& Arena::index(std::uint64_t stream) {
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream) return *entry.free;
  }
  indices_.push_back({stream, std::make_unique<BucketIndex>(granule_)});
  return *indices_.back().free;
}

const BucketIndex* Arena::find_index(std::uint64_t stream) const {
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream) return entry.free.get();
  }
  return nullptr;
}

Block* Arena::split(Block* block, std::size_t size) {
  Block* rest = store_.make();
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->window = block->window;
  rest->stream = block->stream;
  rest->epoch = block->epoch;
  rest->state = block->state;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  return rest;
}

void Arena::absorb_next(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->epoch = std::max(block->epoch, next->epoch);
  block->next = next->next;
  if (block->next != nullptr) block->next->previous = block;
  store_.recycle(next);
}

Block* Arena::carve(Block* block, std::size_t size, std::size_t alignment) {
  if (const std::uintptr_t aligned = round_up(block->address, alignment); aligned != block->address) {
    Block* head = block;
    block = split(head, aligned - head->address);
    put(head);
  }
  if (block->size > size) put(split(block, size));
  return block;
}

Block* Arena::take(std::size_t size, std::size_t alignment, std::uint64_t stream) {
  BucketIndex& free = index(stream);
  const std::size_t slack = alignment > granule_ ? alignment - granule_ : 0;
  Block* block = free.find(size + slack);
  if (block == nullptr) return nullptr;
  free.remove(block);
  block->state = BlockState::busy;
  return carve(block, size, alignment);
}

Block* Arena::take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream) {
  const std::size_t slack = alignment > granule_ ? alignment - granule_ : 0;
  Block* best = nullptr;
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream) continue;
    Block* block = entry.free->find(size + slack);
    if (block != nullptr && (best == nullptr || block->size < best->size)) best = block;
  }
  if (best == nullptr) return nullptr;
  remove_free(best);
  best->state = BlockState::busy;
  return carve(best, size, alignment);
}

template <class Visit>
void Arena::for_each_free_run(Visit visit) const {
  for (const auto& window : windows_) {
    Block* first = nullptr;
    for (Block* block = window->first; block != nullptr; block = block->next) {
      if (block->state != BlockState::free) continue;
      if (block->previous == nullptr || block->previous->state != BlockState::free) first = block;
      if (block->next == nullptr || block->next->state != BlockState::free) visit(first, block);
    }
  }
}

std::vector<Block*> Arena::take_run(Block* first, Block* last) {
  std::vector<Block*> run;
  if (first == nullptr) return run;
  for (Block* block = first;; block = block->next) {
    remove_free(block);
    block->state = BlockState::busy;
    run.push_back(block);
    if (block == last) return run;
  }
}

std::vector<Block*> Arena::take_across_streams(std::size_t size) {
  Block* best_first = nullptr;
  Block* best_last = nullptr;
  std::size_t best = SIZE_MAX;
  for_each_free_run([&](Block* first, Block* last) {
    const std::size_t bytes = last->end() - first->address;
    if (bytes < size || bytes >= best) return;
    best = bytes;
    best_first = first;
    best_last = last;
  });
  return take_run(best_first, best_last);
}

std::vector<Block*> Arena::take_mixed_pages() {
  Block* oldest_first = nullptr;
  Block* oldest_last = nullptr;
  std::uint64_t oldest = UINT64_MAX;
  for_each_free_run([&](Block* first, Block* last) {
    if (first == last || whole_pages(first->address, last->end()) == 0) return;
    std::uint64_t epoch = 0;
    for (const Block* block = first; block != last->next; block = block->next) epoch = std::max(epoch, block->epoch);
    if (epoch >= oldest) return;
    oldest = epoch;
    oldest_first = first;
    oldest_last = last;
  });
  return take_run(oldest_first, oldest_last);
}

Block* Arena::join(const std::vector<Block*>& blocks) {
  for (std::size_t i = 1; i < blocks.size(); ++i) absorb_next(blocks.front());
  return blocks.front();
}

void Arena::put(Block* block) {
  block->state = BlockState::free;
  const auto joins = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::free && other->stream == block->stream;
  };
  if (joins(block->next)) {
    remove_free(block->next);
    absorb_next(block);
  }
  if (joins(block->previous)) {
    block = block->previous;
    remove_free(block);
    absorb_next(block);
  }
  index(block->stream).insert(block);
}

Arena::Growth Arena::plan_growth(std::size_t size, std::uint64_t stream, std::size_t step) const {
  const auto joins = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::free && other->stream == stream;
  };
  Growth best;
  for (Block* hole : holes_) {
    const std::size_t below = joins(hole->previous) ? hole->previous->size : 0;
    const std::size_t above = joins(hole->next) ? hole->next->size : 0;
    if (below + hole->size + above < size) continue;
    const std::uintptr_t end = round_up(hole->address + (size - std::min(below, size)), step);
    const std::size_t bytes = std::min(end - hole->address, hole->size);
    if (bytes != 0 && (best.hole == nullptr || bytes < best.bytes)) best = {hole, bytes};
  }
  return best;
}

Block* Arena::begin_growth(const Growth& growth, std::uint64_t stream) {
  Block* pages = growth.hole;
  holes_.erase(pages);
  if (pages->size > growth.bytes) holes_.insert(split(pages, growth.bytes));
  pages->state = BlockState::busy;
  pages->stream = stream;
  return pages;
}

void Arena::uncommit(Block* block) {
  block->state = BlockState::uncommitted;
  block->stream = 0;
  block->epoch = 0;
  if (block->next != nullptr && block->next->state == BlockState::uncommitted) {
    holes_.erase(block->next);
    absorb_next(block);
  }
  if (block->previous != nullptr && block->previous->state == BlockState::uncommitted) {
    block = block->previous;
    absorb_next(block);
  } else {
    holes_.insert(block);
  }
}

std::size_t Arena::whole_pages(std::uintptr_t begin, std::uintptr_t end) const {
  begin = round_up(begin, page_);
  end = round_down(end, page_);
  return end > begin ? end - begin : 0;
}

Block* Arena::least_recently_used() const {
  Block* oldest = nullptr;
  for (const StreamIndex& entry : indices_) {
    entry.free->for_each_from(page_, [&](Block* block) {
      if (whole_pages(block) == 0) return;
      if (oldest == nullptr || block->epoch < oldest->epoch ||
          (block->epoch == oldest->epoch && block->address > oldest->address)) {
        oldest = block;
      }
    });
  }
  return oldest;
}

Block* Arena::take_pages(Block* block, std::size_t bytes) {
  const std::size_t wanted = std::min(round_up(std::min(bytes, whole_pages(block)), page_), whole_pages(block));
  remove_free(block);
  block->state = BlockState::busy;
  const std::uintptr_t end = round_down(block->end(), page_);
  if (end != block->end()) put(split(block, end - block->address));
  const std::uintptr_t begin = end - wanted;
  if (begin == block->address) return block;
  Block* pages = split(block, begin - block->address);
  put(block);
  return pages;
}

const Window* Arena::window_of(std::uintptr_t address) const noexcept {
  const Window* window = newest_window_.load(std::memory_order_acquire);
  while (window != nullptr && address - window->address >= window->size) window = window->older;
  return window;
}

Block* Arena::live(std::uintptr_t address) const noexcept {
  const Window* window = window_of(address);
  Block* block = window == nullptr ? nullptr : window->live.find(address - window->address);
  return block != nullptr && block->address == address ? block : nullptr;
}

const Block* Arena::containing(std::uintptr_t address) const {
  const Window* window = window_of(address);
  if (window == nullptr) return nullptr;
  const Block* block = window->first;
  while (block->end() <= address) block = block->next;
  return block;
}

std::size_t Arena::free_bytes() const {
  std::size_t bytes = 0;
  for (const StreamIndex& entry : indices_) bytes += entry.free->bytes();
  return bytes;
}

std::size_t Arena::free_bytes(std::uint64_t stream) const {
  const BucketIndex* free = find_index(stream);
  return free == nullptr ? 0 : free->bytes();
}

std::size_t Arena::releasable_bytes() const {
  std::size_t bytes = 0;
  for_each_free_run([&](const Block* first, const Block* last) { bytes += whole_pages(first->address, last->end()); });
  return bytes;
}

std::size_t Arena::largest_free() const {
  std::size_t largest = 0;
  for (const StreamIndex& entry : indices_) {
    entry.free->for_each_from(0, [&](const Block* block) { largest = std::max(largest, block->size); });
  }
  return largest;
}

}  // namespace poolgrad
