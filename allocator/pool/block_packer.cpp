#include "allocator/pool/block_packer.h"

#include <algorithm>

namespace poolgrad {

namespace {

// What may be noted about blocks before any are packed: this share of what is reserved, and a little.
constexpr std::size_t most_share = 64;
constexpr std::size_t least = std::size_t{64} << 10;

}  // namespace

// A pass takes time for every block that is not packed, and what was packed in vain costs more when it is given back.
// Where much of what was packed has come out again, as in training steps, blocks come and go: before the next pass,
// twice as much may be noted.
void BlockPacker::pack_or_wait() noexcept {
  const auto most = [&] { return std::max(least + ground_.accounts.reserved_bytes.current / most_share, patience_); };
  pack_above_ = most();
  // A routine needs what it had, see Routine::resettle().
  if (!ground_.settings.config.packing || arenas_.noted_bytes() <= pack_above_ || front_.has_routine()) return;
  if (arenas_.unpacked_blocks() - unpacked_then_ > packed_ / 4) {
    patience_ = regret_ = 2 * arenas_.noted_bytes();
    packed_ = 0;
    unpacked_then_ = arenas_.unpacked_blocks();
  } else {
    if (packed_ != 0) regret_ /= 2;
    const Standstill standstill(front_);
    pack();
  }
  pack_above_ = most();
}

void BlockPacker::pack() noexcept {
  front_.resettle();
  unpacked_then_ = arenas_.unpacked_blocks();
  packed_ = arenas_.pack([&](const Block* block) {
    return ground_.settings.config.packing && block->state == BlockState::live && !block->used_elsewhere &&
           !plan_.owns(block);
  });
  const std::size_t noted = arenas_.noted_bytes();
  patience_ = std::max(noted + std::max(noted / 8, least / 2), regret_);
}

void BlockPacker::tidy() noexcept {
  pack();
  pack_above_ = patience_ = regret_ = 0;
}

}  // namespace poolgrad
