#include "allocator/pool/pending_blocks.h"

namespace poolgrad {

void PendingBlocks::add(Block* block, std::vector<Stamp>& stamps, bool changed) {
  OfStream& of_stream = streams_[block->stream];
  List added;
  added.push_back({block, next_number_++, {}});
  by_size_.insert({block->size, added.back().number, added.begin()});
  added.back().stamps = std::move(stamps);
  of_stream.blocks.splice(of_stream.blocks.end(), added);
  of_stream.changed |= changed;
  bytes_ += block->size;
  block->state = BlockState::pending;
}

void PendingBlocks::put_back(Taken& taken) noexcept {
  Block* block = taken.value().pending->block;
  block->state = BlockState::pending;
  bytes_ += block->size;
  by_size_.insert(std::move(taken));
  finished_ = true;  // free_settled() may have skipped it
}

void PendingBlocks::remove(const Taken& taken) noexcept {
  const auto pending = taken.value().pending;
  streams_.find(pending->block->stream)->second.blocks.erase(pending);
}

void PendingBlocks::rename(std::uint64_t from, std::uint64_t to) noexcept {
  if (auto renamed = streams_.extract(from)) {
    renamed.key() = to;
    const auto merged = streams_.insert(std::move(renamed));
    if (!merged.inserted) {
      List& blocks = merged.position->second.blocks;
      blocks.splice(blocks.end(), merged.node.mapped().blocks);
    }
  }
  for (auto& [stream, of_stream] : streams_) {
    for (PendingBlock& pending : of_stream.blocks) {
      for (Stamp& stamp : pending.stamps) {
        if (stamp.stream == from) stamp.stream = to;
      }
    }
  }
  finished_ = true;  // may include streams known to be finished
}

std::size_t PendingBlocks::bookkeeping_bytes() const {
  constexpr std::size_t list_node = 2 * sizeof(void*), tree_node = 4 * sizeof(void*);
  std::size_t bytes = streams_.size() * (tree_node + sizeof(decltype(streams_)::value_type)) +
                      by_size_.size() * (tree_node + sizeof(BySize));
  for_each([&](const PendingBlock& pending) {
    bytes += list_node + sizeof(PendingBlock) + pending.stamps.capacity() * sizeof(Stamp);
  });
  return bytes;
}

}  // namespace poolgrad
