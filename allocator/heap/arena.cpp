#include "allocator/heap/arena.h"

#include <algorithm>
#include <new>

#include "allocator/base/rounding.h"

namespace poolgrad {

namespace {

// Only uncommitted memory follows in the window, so the block's size depends only on earlier growth.
bool is_last(const Block* block) {
  return block->next == nullptr || (block->next->state == BlockState::uncommitted && block->next->next == nullptr);
}

bool is_any(const Block*) { return true; }
bool is_no_last(const Block* block) { return !is_last(block); }

// The smallest block of at least `size` bytes that is usable, at the lowest address.
template <class Usable>
Block* smallest(const BucketIndex& free, std::size_t size, const Usable& usable) {
  Block* best = free.find(size);
  if (best == nullptr || usable(best)) return best;
  best = nullptr;
  free.for_each_from(size, [&](Block* block) {
    if (block->size < size || !usable(block)) return;
    if (best == nullptr || block->size < best->size || (block->size == best->size && block->address < best->address)) {
      best = block;
    }
  });
  return best;
}

// Best fit among usable blocks, or close to it for alignments above the granule.
template <class Usable>
Block* find(const BucketIndex& free, std::size_t size, std::size_t alignment, std::size_t granule,
            const Usable& usable) {
  Block* best = smallest(free, size, usable);
  if (best == nullptr || Arena::fits(best, size, alignment)) return best;
  // Large enough for any start address.
  best = smallest(free, size + alignment - granule, usable);
  if (best != nullptr) return best;
  // A smaller block may happen to be aligned. Rare, so all are examined.
  return smallest(free, size, [&](const Block* block) { return usable(block) && Arena::fits(block, size, alignment); });
}

}  // namespace

void Arena::add_window(std::uintptr_t address, std::size_t bytes) {
  holes_.insert(tile(address, bytes, HandleMap(address, bytes, page_, divisible_)));
}

std::optional<std::pair<std::uintptr_t, std::size_t>> Arena::remove_empty_window() {
  const auto is_empty = [](const auto& window) {
    return window->first->state == BlockState::uncommitted && window->first->size == window->size;
  };
  const auto empty = std::ranges::find_if(windows_, is_empty);
  if (empty == windows_.end()) return std::nullopt;
  Block* const hole = (*empty)->first;
  const std::pair range(hole->address, hole->size);
  former_windows_.reserve(former_windows_.size() + 1);
  holes_.remove(hole);
  untile(hole);
  return range;
}

Arena::FreeBlocks& Arena::find_or_make_index(std::uint64_t stream) {
  auto known = std::ranges::find(indices_, stream, &StreamIndex::stream);
  if (known == indices_.end()) {
    indices_.push_back({stream, std::make_unique<FreeBlocks>(granule_)});
    known = std::prev(indices_.end());
  }
  latest_stream_ = stream;
  latest_index_ = known->free.get();
  return *latest_index_;
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

Block* Arena::resize(Block* block, std::size_t size) {
  store_.reserve(1);
  if (size < block->size) {
    Block* rest = split(block, size);
    rest->state = BlockState::busy;
    return rest;
  }
  if (size > block->size) {
    remove_free(block->next);
    absorb_next(block);
    if (size < block->size) put(split(block, size));
  }
  return nullptr;
}

bool Arena::fills_pages(std::size_t size) const {
  constexpr std::size_t largest_rest_share = 64;
  const std::size_t rest = -size & (page_ - 1);
  return size >= 2 * page_ && rest <= size / largest_rest_share;
}

std::size_t Arena::preferred_alignment(std::size_t size, std::size_t alignment) const {
  return fills_pages(size) && !last_comes_last_ ? std::max(alignment, page_) : alignment;
}

Block* Arena::take(std::size_t size, std::size_t alignment, std::uint64_t stream) {
  const BucketIndex& free = index(stream).by_size;
  const std::size_t preferred = preferred_alignment(size, alignment);
  std::size_t start = 0;  // the alignment of the block found
  const auto search = [&](const auto& usable) {
    start = preferred;
    Block* block = find(free, size, start, granule_, usable);
    if (block != nullptr || preferred == alignment) return block;
    start = alignment;
    return find(free, size, start, granule_, usable);
  };
  Block* block = last_comes_last_ ? search(is_no_last) : nullptr;
  if (block == nullptr) block = search(is_any);
  if (block == nullptr) return nullptr;
  store_.reserve(2);
  remove_free(block);
  block->state = BlockState::busy;
  return carve(block, size, start);
}

Block* Arena::take_from_other_streams(std::size_t size, std::size_t alignment, std::uint64_t stream,
                                      const std::function<bool(const Block*)>& ready, const Streams& without) {
  Block* best = nullptr;
  bool best_is_ready = false;
  for (const StreamIndex& entry : indices_) {
    if (entry.stream == stream || contains(without, entry.stream)) continue;
    Block* block = find(entry.free->by_size, size, alignment, granule_, is_any);
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

template <class Cost>
std::vector<Block*> Arena::take_cheapest_run(Cost cost, const Streams& without) {
  Block* best_first = nullptr;
  Block* best_last = nullptr;
  std::uint64_t least = UINT64_MAX;
  const auto consider = [&](Block* first, Block* last) {
    const std::uint64_t its_cost = cost(first, last);
    if (its_cost >= least) return;
    least = its_cost;
    best_first = first;
    best_last = last;
  };
  for_each_free_run(consider, without);
  std::vector<Block*> run;
  if (best_first == nullptr) return run;
  for (Block* block = best_first; block != best_last->next; block = block->next) run.push_back(block);
  for (Block* block : run) {
    remove_free(block);
    block->state = BlockState::busy;
  }
  return run;
}

std::vector<Block*> Arena::take_across_streams(std::size_t size, std::size_t alignment, const Streams& without) {
  if (!several_streams_have_free_blocks() || free_bytes() < size) return {};
  const auto cost = [&](const Block* first, const Block* last) -> std::uint64_t {
    const std::uintptr_t start = round_up(first->address, alignment);
    const bool holds_it = start >= first->address && start <= last->end() && last->end() - start >= size;
    return holds_it ? last->end() - first->address : UINT64_MAX;
  };
  return take_cheapest_run(cost, without);
}

bool Arena::several_streams_have_free_blocks() const {
  return std::ranges::count_if(indices_, [](const StreamIndex& entry) { return entry.free->by_size.bytes() != 0; }) > 1;
}

std::vector<Block*> Arena::take_mixed_handles(const Streams& without) {
  if (!several_streams_have_free_blocks()) return {};
  const auto cost = [](const Block* first, const Block* last) {
    if (first == last || whole_handles(first, last) == 0) return UINT64_MAX;
    std::uint64_t epoch = 0;
    for (const Block* block = first; block != last->next; block = block->next) epoch = std::max(epoch, block->epoch);
    return epoch;
  };
  return take_cheapest_run(cost, without);
}

void Arena::remove_free(Block* block) noexcept {
  ++changes_;
  FreeBlocks& free = index(block->stream);
  free.by_size.remove(block);
  if (block->size < page_) return;
  free.by_handles.remove(block);
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
  FreeBlocks& free = index(block->stream);
  free.by_size.insert(block);
  if (block->size >= page_) free.by_handles.insert(block);
  return block;
}

std::size_t Arena::free_bytes() const {
  std::size_t bytes = 0;
  for (const StreamIndex& entry : indices_) bytes += entry.free->by_size.bytes();
  return bytes;
}

std::size_t Arena::free_bytes(std::uint64_t stream) const {
  const auto known = std::ranges::find(indices_, stream, &StreamIndex::stream);
  return known == indices_.end() ? 0 : known->free->by_size.bytes();
}

std::size_t Arena::largest_free(std::optional<std::uint64_t> stream) const {
  std::size_t largest = 0;
  for (const StreamIndex& entry : indices_) {
    if (stream && entry.stream != *stream) continue;
    entry.free->by_size.for_each_largest_first([&](const Block* block) {
      largest = std::max(largest, block->size);
      return false;
    });
  }
  return largest;
}

std::size_t Arena::bookkeeping_bytes() const noexcept {
  std::size_t bytes = map_bytes() + indices_.size() * sizeof(FreeBlocks) + former_windows_.size() * sizeof(Window);
  for (const auto& window : windows_) bytes += sizeof(Window) + window->handles.bytes() + window->ages.bytes();
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

void Arenas::tidy() noexcept {
  for (Arena& arena : both_) arena.trim();
  store_.trim();
}

void Arenas::expect(std::uint64_t stream) {
  for (Arena& arena : both_) arena.expect(stream);
}

void Arenas::rename_stream(std::uint64_t from, std::uint64_t to) noexcept {
  for (Arena& arena : both_) arena.rename_stream(from, to);
}

bool Arenas::knows_stream(std::uint64_t stream) const {
  return both_[0].knows_stream(stream) || both_[1].knows_stream(stream);
}

std::size_t Arenas::free_elsewhere(std::uint64_t stream) const {
  std::size_t bytes = 0;
  for (const Arena& arena : both_) bytes += arena.free_bytes() - arena.free_bytes(stream);
  return bytes;
}

std::size_t Arenas::releasable_bytes(std::size_t enough) const {
  const std::size_t bytes = both_[0].releasable_bytes(enough);
  return bytes < enough ? bytes + both_[1].releasable_bytes(enough - bytes) : bytes;
}

std::size_t Arenas::bookkeeping_bytes() const {
  std::size_t bytes = store_.bytes();
  for (const Arena& arena : both_) bytes += arena.bookkeeping_bytes();
  return bytes;
}

}  // namespace poolgrad
