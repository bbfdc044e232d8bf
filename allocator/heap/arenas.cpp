#include "allocator/heap/arenas.h"

#include <new>

namespace poolgrad {

std::optional<Block> Arenas::live_copy(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::optional<Block> block = both_[0].live_copy(address);
  return block ? block : both_[1].live_copy(address);
}

Block* Arenas::unpacked(const void* pointer) {
  if (Block* block = live(pointer)) return block;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (Arena& arena : both_) {
    if (!arena.owns(address)) continue;
    arena.expect_taken_out(address);
    Block* block = arena.take_out(address);
    if (block == nullptr) return nullptr;
    ++unpacked_blocks_;
    Arena::mark_live(block);
    return block;
  }
  return nullptr;
}

Block* Arenas::take_out_at_last(const void* pointer) noexcept {
  try {
    store_.reserve(0);
  } catch (const std::bad_alloc&) {
    // What is kept for this may do.
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  Block* block = both_[0].take_out(address);
  if (block == nullptr) block = both_[1].take_out(address);
  unpacked_blocks_ += block != nullptr;
  return block;
}

std::size_t Arenas::pack(const std::function<bool(const Block*)>& may_pack) noexcept {
  std::size_t packed = 0;
  try {
    for (Arena& arena : both_) arena.pack(may_pack, packed);
  } catch (const std::bad_alloc&) {
    // As many as there was memory for.
  }
  store_.trim();
  return packed;
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
