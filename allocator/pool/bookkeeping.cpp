// What the pool needs for itself: live blocks are packed before it becomes too much, and it goes back when it is not
// needed.
#include <algorithm>
#include <new>

#include "allocator/pool/pool.h"

namespace poolgrad {

namespace {

// What may be noted about blocks before any are packed: this share of what is reserved, and a little.
constexpr std::size_t most_share = 64;
constexpr std::size_t least = std::size_t{64} << 10;

}  // namespace

Block* Pool::unpacked(const void* pointer) {
  if (Block* block = live_block(pointer)) return block;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  for (Arena& arena : arenas_) {
    if (!arena.owns(address)) continue;
    arena.expect_taken_out(address);
    Block* block = arena.take_out(address);
    if (block == nullptr) return nullptr;
    ++taken_out_;
    Arena::mark_live(block);
    return block;
  }
  return nullptr;
}

Block* Pool::unpacked_at_last(const void* pointer) noexcept {
  if (Block* block = live_block(pointer)) return block;
  try {
    store_.reserve(0);
  } catch (const std::bad_alloc&) {
    // What is kept for this may do.
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  Block* block = arenas_[0].take_out(address);
  if (block == nullptr) block = arenas_[1].take_out(address);
  taken_out_ += block != nullptr;
  return block;
}

std::optional<Block> Pool::live_copy(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::optional<Block> block = arenas_[0].live_copy(address);
  return block ? block : arenas_[1].live_copy(address);
}

// A pass takes time for every block that is not packed, and what was packed in vain costs more when it is given back.
// Where much of what was packed has come out again, as in training steps, blocks come and go: before the next pass,
// twice as much may be noted.
void Pool::pack_or_wait() noexcept {
  const auto most = [&] { return std::max(least + statistics_.reserved_bytes.current / most_share, pack_patience_); };
  pack_above_ = most();
  // A routine needs what it had, see Routine::resettle().
  if (!packing_ || noted_bytes() <= pack_above_ || routine_.length() != 0) return;
  if (taken_out_ > packed_ / 4) {
    pack_patience_ = pack_regret_ = 2 * noted_bytes();
    packed_ = taken_out_ = 0;
  } else {
    if (packed_ != 0) pack_regret_ /= 2;
    const Standstill standstill(*this);
    pack();
  }
  pack_above_ = most();
}

void Pool::pack() noexcept {
  routine_.resettle();
  packed_ = taken_out_ = 0;
  try {
    const auto may_pack = [&](const Block* block) {
      return packing_ && block->state == BlockState::live && !block->used_elsewhere &&
             (planner_ == nullptr || !planner_->owns(block));
    };
    for (Arena& arena : arenas_) arena.pack(may_pack, packed_);
  } catch (const std::bad_alloc&) {
    // As many as there was memory for.
  }
  store_.trim();
  const std::size_t noted = noted_bytes();
  pack_patience_ = std::max(noted + std::max(noted / 8, least / 2), pack_regret_);
}

void Pool::tidy() noexcept {
  const std::lock_guard lock(mutex_);
  const Standstill standstill(*this);
  routine_.forget();
  {
    const std::lock_guard caches_lock(caches_mutex_);
    for (ThreadCache* cache : caches_) cache->erase_empty();
  }
  pack();
  tick_marks_.shrink_to_fit();
  pack_above_ = pack_patience_ = pack_regret_ = 0;
}

std::size_t Pool::bookkeeping_bytes() const {
  std::size_t bytes = store_.bytes() + routine_.bookkeeping_bytes() + tick_marks_.capacity() * sizeof(TickMark);
  for (const Arena& arena : arenas_) bytes += arena.bookkeeping_bytes();
  for (const ThreadCache* cache : caches_) {
    bytes += sizeof(ThreadCache);
    cache->for_each_magazine([&](const Magazine&) { bytes += sizeof(Magazine); });
  }
  const auto node = 2 * sizeof(void*);  // of a list or a table, beside what it holds
  for (const Pending& pending : pending_) bytes += node + sizeof(Pending) + pending.stamps.capacity() * sizeof(Stamp);
  for (const auto& use : uses_) bytes += node + sizeof(use) + use.second.capacity() * sizeof(Stamp);
  return bytes + uses_.bucket_count() * sizeof(void*);
}

}  // namespace poolgrad
