#include "allocator/pool/block_packer.h"

#include <algorithm>
#include <new>

namespace poolgrad {

namespace {

// The limit of bookkeeping before anything is packed: this share of the reserved bytes, and a little more.
constexpr std::size_t most_share = 64;
constexpr std::size_t least = std::size_t{48} << 10;

}  // namespace

std::size_t BlockPacker::most_noted() const noexcept {
  return least + ground_.accounts.reserved_bytes.current / most_share;
}

// Unpacked, each takes 300 bytes: an 800th of the reserved bytes in all.
std::size_t BlockPacker::young() const noexcept {
  constexpr std::size_t bytes_each = std::size_t{1} << 18, least_young = 64;
  return std::max(least_young, ground_.accounts.reserved_bytes.current / bytes_each);
}

bool BlockPacker::may_pack(const Block* block) const noexcept {
  return ground_.settings.config.packing && block->state == BlockState::live && !block->used_elsewhere &&
         !plan_.owns(block);
}

void BlockPacker::note_newcomer(const Newcomer& newcomer) noexcept {
  if (newcomers_ == ring_.size()) {
    if (newcomers_ < 4 * young()) {
      std::vector<Newcomer> larger;
      try {
        larger.resize(std::max<std::size_t>(64, 2 * ring_.size()));
      } catch (const std::bad_alloc&) {
        return;  // unpacked until the next pass
      }
      for (std::size_t i = 0; i < newcomers_; ++i) larger[i] = ring_[(oldest_ + i) & (ring_.size() - 1)];
      ring_.swap(larger);
      oldest_ = 0;
    } else {
      ++oldest_;
      --newcomers_;
    }
  }
  ring_[(oldest_ + newcomers_) & (ring_.size() - 1)] = newcomer;
  ++newcomers_;
}

// Blocks that replaced packed ones are packed again one by one, if they stay live: a pass would cost time for all
// blocks in their regions. Packs a few at a time, because other threads wait meanwhile. A cache hit resets the age: the
// block's real age is unknown. Steps that use magazines are therefore left alone.
void BlockPacker::pack_again() noexcept {
  const std::size_t few = young();
  const bool too_much = arenas_.noted_bytes() > most_noted();
  pack_again_above_ = few + few / 4;
  if (newcomers_ <= (too_much ? pack_again_above_ : 2 * few)) return;
  const Standstill standstill(front_);
  for (std::size_t old = newcomers_ - few; old > 0; --old) {
    const Newcomer newcomer = ring_[oldest_++ & (ring_.size() - 1)];
    --newcomers_;
    if (newcomer.number != whichever) {
      arenas_.pack_again(newcomer.address, newcomer.number, [this](const Block* block) { return may_pack(block); });
    } else if (const Block* block = arenas_.live(reinterpret_cast<const void*>(newcomer.address))) {
      note(block);
    }
  }
}

// A pass visits every unpacked block and its neighbors, and blocks packed in vain cost more to free. So the next pass
// waits for a sixteenth as many requests and frees as the last one visited blocks. If many packed blocks were unpacked
// again, relative to all live blocks, as in training steps, blocks come and go: the limit of bookkeeping doubles before
// the next pass.
void BlockPacker::pack_or_wait() noexcept {
  pack_above_ = std::max(most_noted(), patience_);
  if (!ground_.settings.config.packing || arenas_.noted_bytes() <= pack_above_ || ground_.accounts.tick < rests_until_)
    return;
  // Excludes blocks whose place was packed again, but includes young ones.
  const auto come_out = static_cast<std::ptrdiff_t>(arenas_.unpacked_blocks() - unpacked_then_);
  const std::size_t live = ground_.accounts.allocation.current;
  if (come_out > static_cast<std::ptrdiff_t>(std::max({packed_ / 4, 4 * young(), live / 8}))) {
    patience_ = regret_ = 2 * arenas_.noted_bytes();
    packed_ = 0;
    unpacked_then_ = arenas_.unpacked_blocks();
  } else {
    if (packed_ != 0) regret_ /= 2;
    const Standstill standstill(front_);
    pack();
  }
  pack_above_ = std::max(most_noted(), patience_);
}

void BlockPacker::pack() noexcept {
  unpacked_then_ = arenas_.unpacked_blocks();
  const Tiling::Packed packed = arenas_.pack([this](const Block* block) { return may_pack(block); });
  packed_ = packed.blocks;
  rests_until_ = ground_.accounts.tick + packed.touched / 16;
  const std::size_t noted = arenas_.noted_bytes();
  patience_ = std::max(noted + std::max(noted / 8, least / 2), regret_);
}

void BlockPacker::tidy() noexcept {
  pack();
  pack_above_ = patience_ = regret_ = 0;
  rests_until_ = 0;
  std::vector<Newcomer>().swap(ring_);
  oldest_ = newcomers_ = pack_again_above_ = 0;
}

}  // namespace poolgrad
