#include "allocator/replay/policies/chunk_heap.h"

#include <algorithm>

namespace poolgrad {

namespace {

bool merges(const Block* block, const Block* neighbour) {
  return neighbour != nullptr && neighbour->state == BlockState::free && neighbour->stream == block->stream &&
         neighbour->number == block->number;
}

// A free block takes in memory beside it.
void enlarge(BucketIndex& index, Block* block, std::uintptr_t address, std::size_t size) {
  index.remove(block);
  block->address = address;
  block->size = size;
  index.insert(block);
}

void enlarge(FirstFitIndex& index, Block* block, std::uintptr_t address, std::size_t size) {
  index.enlarge(block, address, size);
}

}  // namespace

template <class Index>
Block* BasicChunkHeap<Index>::add(std::uintptr_t address, std::size_t size, std::uint64_t list) {
  Block* block = store_.make();
  block->address = address;
  block->size = size;
  block->stream = list;
  block->state = BlockState::live;
  return block;
}

template <class Index>
void BasicChunkHeap<Index>::remove(Block* block) {
  if (block->previous != nullptr) block->previous->next = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  store_.recycle(block);
}

template <class Index>
Block* BasicChunkHeap<Index>::find(std::uint64_t list, std::size_t size) const {
  const Index* free = index(list);
  return free != nullptr ? free->find(size) : nullptr;
}

template <class Index>
void BasicChunkHeap<Index>::take(Block* block) {
  lists_[block->stream]->remove(block);
  block->state = BlockState::live;
}

template <class Index>
Block* BasicChunkHeap<Index>::take_fit(std::uint64_t list, std::size_t size) {
  Block* block = find(list, size);
  if (block != nullptr) take(block);
  return block;
}

template <class Index>
Block* BasicChunkHeap<Index>::split(Block* block, std::size_t size) {
  Block* rest = add(block->address + size, block->size - size, block->stream);
  rest->number = block->number;
  rest->epoch = block->epoch;
  block->link_rest(rest, size);
  return rest;
}

template <class Index>
void BasicChunkHeap<Index>::trim(Block* block, std::size_t size) {
  if (block->size != size) put(split(block, size));
}

template <class Index>
Block* BasicChunkHeap<Index>::put(Block* block) {
  Block* next = merges(block, block->next) ? block->next : nullptr;
  Block* previous = merges(block, block->previous) ? block->previous : nullptr;
  if (previous != nullptr && next != nullptr) {
    take(next);
    absorb_next(block);
  }
  if (Block* neighbour = previous != nullptr ? previous : next) {
    enlarge(list(block->stream), neighbour, std::min(neighbour->address, block->address),
            neighbour->size + block->size);
    neighbour->epoch = std::max(neighbour->epoch, block->epoch);
    remove(block);
    return neighbour;
  }
  block->state = BlockState::free;
  list(block->stream).insert(block);
  return block;
}

template <class Index>
void BasicChunkHeap<Index>::absorb_next(Block* block) {
  store_.recycle(block->absorb_next());
}

template <class Index>
std::vector<Block*> BasicChunkHeap<Index>::blocks(std::uint64_t list) const {
  std::vector<Block*> found;
  if (const Index* free = index(list)) {
    free->for_each_from(0, [&](Block* block) { found.push_back(block); });
  }
  std::sort(found.begin(), found.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  return found;
}

template <class Index>
Index& BasicChunkHeap<Index>::list(std::uint64_t index) {
  if (index >= lists_.size()) lists_.resize(index + 1);
  if (lists_[index] == nullptr) lists_[index] = std::make_unique<Index>(granule_);
  return *lists_[index];
}

template class BasicChunkHeap<BucketIndex>;
template class BasicChunkHeap<FirstFitIndex>;

}  // namespace poolgrad
