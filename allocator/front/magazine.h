// Small blocks that one thread freed on one stream, for its next requests of the same size, newest first. A block in a
// magazine keeps its place among its neighbors, in state `magazine`, so a hit or a free touches only the block and the
// magazine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/heap/block.h"

namespace poolgrad {

/// Used by one thread at a time; any thread may call bytes().
class Magazine {
 public:
  static constexpr std::size_t largest_block = std::size_t{1} << 20;
  static constexpr std::size_t most_bytes = std::size_t{4} << 20;
  static constexpr std::uint32_t most_blocks = 64;

  Magazine(std::uint64_t stream, std::uint32_t trace_stream, std::uint64_t ticket)
      : stream_(stream), ticket_(ticket), trace_stream_(trace_stream) {}

  Magazine* older = nullptr;  // of the same thread

  std::uint64_t stream() const noexcept { return stream_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// For traces: the stream's trace index and its current ticket, which any thread may set.
  std::uint32_t trace_stream() const noexcept { return trace_stream_; }
  void set_trace_stream(std::uint32_t index) noexcept { trace_stream_ = index; }
  std::uint64_t ticket() const noexcept { return ticket_; }
  void set_ticket(std::uint64_t ticket) noexcept { ticket_ = ticket; }
  std::uint32_t blocks() const noexcept { return blocks_; }

  /// Returns the last freed block of exactly `size` bytes; nullptr if there is none, or if it is misaligned.
  Block* pop(std::size_t size, std::size_t alignment) noexcept {
    Bin& bin = bin_of(size);
    Block* block = bin.top;
    if (block == nullptr || block->size != size || (block->address & (alignment - 1)) != 0) return nullptr;
    bin.top = block->left;
    --blocks_;
    bytes_ = bytes_ - size;
    return block;
  }

  /// Returns false, taking nothing, if a limit is reached or the block's bin holds another size. The magazine holds at
  /// most `limit` bytes.
  bool push(Block* block, std::size_t limit) noexcept {
    const std::size_t size = block->size;
    Bin& bin = bin_of(size);
    if (blocks_ == most_blocks || bytes_ + size > limit || size > largest_block) return false;
    if (bin.top != nullptr && bin.top->size != size) return false;
    block->left = bin.top;
    block->state = BlockState::magazine;
    bin.top = block;
    bin.used = ++clock_;
    ++blocks_;
    bytes_ = bytes_ + size;
    return true;
  }

  /// Makes room after a refused push(): calls release(Block*) for the blocks of one bin that was unused for a while, if
  /// there is one.
  template <class Release>
  void make_room(const Block* block, Release release) {
    Bin& own = bin_of(block->size);
    ++clock_;
    if (own.top != nullptr && own.top->size != block->size) {
      if (stale(own)) drain(own, release);
      return;
    }
    for (int looked = 0; looked < 8; ++looked) {
      Bin& bin = bins_[hand_++ % bins_.size()];
      if (bin.top != nullptr && stale(bin)) return drain(bin, release);
    }
  }

  /// Calls release(Block*) for every block.
  template <class Release>
  void drain(Release release) {
    if (blocks_ == 0) return;
    for (Bin& bin : bins_) drain(bin, release);
  }

 private:
  struct Bin {
    Block* top = nullptr;
    std::uint32_t used = 0;  // the clock at the last push
  };

  static constexpr unsigned bin_bits = 7;
  static constexpr std::uint32_t patience = 2 * most_blocks;

  Bin& bin_of(std::size_t size) noexcept {
    // Sizes are multiples of at least 16, often of powers of two: multiplying spreads them (Knuth 1973, 6.4).
    return bins_[(static_cast<std::uint32_t>(size >> 4) * 0x9E3779B1u) >> (32 - bin_bits)];
  }
  bool stale(const Bin& bin) const noexcept { return clock_ - bin.used > patience; }

  template <class Release>
  void drain(Bin& bin, Release& release) {
    while (bin.top != nullptr) {
      Block* block = bin.top;
      bin.top = block->left;
      --blocks_;
      bytes_ = bytes_ - block->size;
      release(block);
    }
  }

  const std::uint64_t stream_;
  Relaxed<std::size_t> bytes_ = 0;
  Relaxed<std::uint64_t> ticket_;
  std::uint32_t trace_stream_;
  std::uint32_t blocks_ = 0;
  std::uint32_t clock_ = 0;  // pushes attempted so far
  std::uint32_t hand_ = 0;   // the next bin for make_room()
  std::array<Bin, std::size_t{1} << bin_bits> bins_{};
};

}  // namespace poolgrad
