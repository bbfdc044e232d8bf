#include "allocator/heap/arena.h"

#include <algorithm>

#include "allocator/base/rounding.h"

namespace poolgrad {

void Arena::add_window(std::uintptr_t address, std::size_t bytes) {
  holes_.insert(tile(address, bytes, HandleMap(address, bytes, page_, divisible_)));
}

BucketIndex& Arena::find_or_make_index(std::uint64_t stream) {
  auto known = std::ranges::find(indices_, stream, &StreamIndex::stream);
  if (known == indices_.end()) {
    indices_.push_back({stream, std::make_unique<BucketIndex>(granule_)});
    known = std::prev(indices_.end());
  }
  latest_stream_ = stream;
  latest_index_ = known->free.get();
  return *latest_index_;
}

const BucketIndex* Arena::find_index(std::uint64_t stream) const {
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream) return entry.free.get();
  }
  return nullptr;
}

Block* Arena::carve(Block* block, std::size_t size, std::size_t alignment) {
  store_.reserve(2);
  if (const std::uintptr_t aligned = round_up(block->address, alignment); aligned != block->address) {
    Block* head = block;
    block = split(head, aligned - head->address);
    put(head);
  }
  if (block->size > size) put(split(block, size));
  return block;
}

std::size_t Arena::free_after(const Block* block) noexcept {
  const Block* next = block->next;
  return next != nullptr && next->state == BlockState::free && next->stream == block->stream ? next->size : 0;
}

void Arena::resize(Block* block, std::size_t size) {
  store_.reserve(1);
  if (size > block->size) {
    remove_free(block->next);
    absorb_next(block);
  }
  if (size < block->size) put(split(block, size));
}

Block* Arena::find(const BucketIndex& free, std::size_t size, std::size_t alignment, std::size_t granule) {
  Block* best = free.find(size);
  if (best == nullptr || fits(best, size, alignment)) return best;
  // Large enough wherever it starts.
  best = free.find(size + alignment - granule);
  if (best != nullptr) return best;
  // One of those in between may start at the right place. Rare, so all are looked at.
  free.for_each_from(size, [&](Block* block) {
    if (!fits(block, size, alignment)) return;
    if (best == nullptr || block->size < best->size || (block->size == best->size && block->address < best->address)) {
      best = block;
    }
  });
  return best;
}

bool Arena::fills_pages(std::size_t size) const {
  constexpr std::size_t largest_rest_share = 64;
  const std::size_t rest = -size & (page_ - 1);
  return size >= 2 * page_ && rest <= size / largest_rest_share;
}

std::size_t Arena::preferred_alignment(std::size_t size, std::size_t alignment) const {
  return fills_pages(size) ? std::max(alignment, page_) : alignment;
}

Block* Arena::take(std::size_t size, std::size_t alignment, std::uint64_t stream) {
  BucketIndex& free = index(stream);
  const std::size_t preferred = preferred_alignment(size, alignment);
  Block* block = find(free, size, preferred, granule_);
  if (block != nullptr) {
    alignment = preferred;
  } else if (preferred != alignment) {
    block = find(free, size, alignment, granule_);
  }
  if (block == nullptr) return nullptr;
  store_.reserve(2);
  remove_free(block);
  block->state = BlockState::busy;
  return carve(block, size, alignment);
}

Block* Arena::take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                      const std::function<bool(const Block*)>& ready) {
  Block* best = nullptr;
  bool best_is_ready = false;
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream) continue;
    Block* block = find(*entry.free, size, alignment, granule_);
    if (block == nullptr) continue;
    const bool is_ready = ready(block);
    const bool better = best == nullptr || (is_ready != best_is_ready ? is_ready : block->size < best->size);
    if (!better) continue;
    best = block;
    best_is_ready = is_ready;
  }
  if (best == nullptr) return nullptr;
  remove_free(best);
  best->state = BlockState::busy;
  return best;
}

std::vector<Block*> Arena::take_run(Block* first, Block* last) {
  std::vector<Block*> run;
  if (first == nullptr) return run;
  std::size_t count = 1;
  for (const Block* block = first; block != last; block = block->next) ++count;
  run.reserve(count);
  for (Block* block = first;; block = block->next) {
    remove_free(block);
    block->state = BlockState::busy;
    run.push_back(block);
    if (block == last) return run;
  }
}

std::vector<Block*> Arena::take_across_streams(std::size_t size, std::size_t alignment) {
  Block* best_first = nullptr;
  Block* best_last = nullptr;
  std::size_t best = SIZE_MAX;
  for_each_free_run([&](Block* first, Block* last) {
    const std::size_t bytes = last->end() - first->address;
    const std::uintptr_t start = round_up(first->address, alignment);
    if (start < first->address || start > last->end() || last->end() - start < size || bytes >= best) return;
    best = bytes;
    best_first = first;
    best_last = last;
  });
  return take_run(best_first, best_last);
}

Block* Arena::put(Block* block) noexcept {
  ++changes_;
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

std::size_t Arena::largest_free() const {
  std::size_t largest = 0;
  for (const StreamIndex& entry : indices_) {
    entry.free->for_each_from(0, [&](const Block* block) { largest = std::max(largest, block->size); });
  }
  return largest;
}

std::size_t Arena::bookkeeping_bytes() const noexcept {
  std::size_t bytes = map_bytes() + indices_.size() * sizeof(BucketIndex);
  for (const auto& window : windows_) bytes += sizeof(Window) + window->handles.bytes();
  return bytes;
}

void Arena::rename_stream(std::uint64_t from, std::uint64_t to) noexcept {
  for (const auto& window : windows_) {
    for (Block* block = window->first; block != nullptr; block = block->next) {
      if (block->stream != from || block->state == BlockState::uncommitted) continue;
      const bool free = block->state == BlockState::free;
      if (free) remove_free(block);
      block->stream = to;
      if (free) block = put(block);
    }
  }
  std::erase_if(indices_, [&](const StreamIndex& entry) { return entry.stream == from; });
  latest_index_ = nullptr;
}

bool Arena::knows_stream(std::uint64_t stream) const {
  if (free_bytes(stream) != 0) return true;
  for (const auto& window : windows_) {
    for (const Block* block = window->first; block != nullptr; block = block->next) {
      if (block->stream == stream && block->state != BlockState::uncommitted) return true;
    }
  }
  return false;
}

}  // namespace poolgrad
