// Small blocks that one thread freed on one stream, for its next requests of the same size, newest first. A block in a
// magazine keeps its place among its neighbors, in state `magazine`, so a hit or a free touches only the block and the
// magazine. Chains of blocks move between magazines through the depot, so that a thread that only frees and a thread
// that only allocates seldom take the pool's mutex (Bonwick and Adams 2001, "Magazines and Vmem").
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocator/heap/block.h"

namespace poolgrad {

/// Blocks of one size and stream, linked by `left`.
struct Chain {
  Block* top = nullptr;
  std::size_t size = 0;  // of each
  std::uint32_t count = 0;

  std::size_t bytes() const noexcept { return count * size; }
  void push(Block* block) noexcept {
    block->left = std::exchange(top, block);
    size = block->size;
    ++count;
  }
  Block* pop() noexcept {
    --count;
    return std::exchange(top, top->left);
  }
  /// Calls release(Block*) for every block, and becomes empty.
  template <class Release>
  void drain(Release& release) {
    while (top != nullptr) release(pop());
  }
};

/// Used by one thread at a time; any thread may call bytes().
class Magazine {
 public:
  static constexpr std::size_t most_bytes = std::size_t{4} << 20;
  /// Magazines of at most `limit` bytes keep no larger block.
  static constexpr std::size_t largest_block(std::size_t limit) noexcept { return limit / 4; }

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

  /// Returns the last freed block of exactly `size` bytes; nullptr if there is none, or if it is misaligned.
  Block* pop(std::size_t size, std::size_t alignment) noexcept {
    Bin& bin = bin_of(size);
    Block* block = bin.chain.top;
    if (block == nullptr || bin.chain.size != size || (block->address & (alignment - 1)) != 0) return nullptr;
    bytes_ = bytes_ - size;
    return bin.chain.pop();
  }

  /// Returns false, taking nothing, if the magazine would hold more than `limit` bytes, or if the block's bin holds
  /// another size.
  bool push(Block* block, std::size_t limit) noexcept {
    const std::size_t size = block->size;
    Bin& bin = bin_of(size);
    if (bytes_ + size > limit || (bin.chain.top != nullptr && bin.chain.size != size)) return false;
    block->state = BlockState::magazine;
    bin.chain.push(block);
    bin.used = ++clock_;
    bytes_ = bytes_ + size;
    return true;
  }

  /// Makes room after a refused push(): gives up the blocks of a bin that was unused for a while, of larger blocks, or
  /// the block's own if that has several. Else the chain is empty.
  Chain make_room(const Block* block) noexcept {
    Bin& own = bin_of(block->size);
    ++clock_;
    const auto is_better = [&](const Bin& bin) { return stale(bin) || bin.chain.size > block->size; };
    if (own.chain.top != nullptr && own.chain.size != block->size) return is_better(own) ? take(own) : Chain{};
    for (int looked = 0; looked < 8; ++looked) {
      Bin& bin = bins_[hand_++ % bins_.size()];
      if (bin.chain.top != nullptr && is_better(bin)) return take(bin);
    }
    return own.chain.count >= long_chain ? take(own) : Chain{};
  }

  /// Takes over the chain. Returns false, changing nothing, if a limit is reached or its bin is in use.
  bool take_over(Chain chain, std::size_t limit) noexcept {
    if (bytes_ + chain.bytes() > limit) return false;
    Bin& bin = bin_of(chain.size);
    if (bin.chain.top != nullptr) return false;
    bin = {chain, ++clock_};
    bytes_ = bytes_ + chain.bytes();
    return true;
  }

  /// Calls release(Block*) for every block.
  template <class Release>
  void drain(Release release) {
    if (bytes_ == 0) return;
    for (Bin& bin : bins_) take(bin).drain(release);
  }

 private:
  struct Bin {
    Chain chain;
    std::uint32_t used = 0;  // the clock at the last push
  };

  static constexpr unsigned bin_bits = 7;
  static constexpr std::uint32_t patience = 128;
  static constexpr std::uint32_t long_chain = 4;

  Bin& bin_of(std::size_t size) noexcept {
    // Sizes are multiples of at least 16, often of powers of two: multiplying spreads them (Knuth 1973, 6.4).
    return bins_[(static_cast<std::uint32_t>(size >> 4) * 0x9E3779B1u) >> (32 - bin_bits)];
  }
  bool stale(const Bin& bin) const noexcept { return clock_ - bin.used > patience; }
  Chain take(Bin& bin) noexcept {
    bytes_ = bytes_ - bin.chain.bytes();
    return std::exchange(bin.chain, {});
  }

  const std::uint64_t stream_;
  Relaxed<std::size_t> bytes_ = 0;
  Relaxed<std::uint64_t> ticket_;
  std::uint32_t trace_stream_;
  std::uint32_t clock_ = 0;  // pushes attempted so far
  std::uint32_t hand_ = 0;   // the next bin for make_room()
  std::array<Bin, std::size_t{1} << bin_bits> bins_{};
};

/// Chains that magazines gave up, for the next thread that needs their size and stream. A few, oldest first. Requires
/// the pool's mutex, except bytes().
class Depot {
 public:
  std::size_t bytes() const noexcept { return bytes_; }

  /// Keeps a chain. Calls release(Block*) for the blocks of older ones, so that at most four times the `limit` of a
  /// magazine is left; or for the chain's own.
  template <class Release>
  void give(Chain chain, std::size_t limit, Release release) {
    if (chain.top == nullptr) return;
    if (chain.bytes() > limit) return chain.drain(release);
    while (count_ == chains_.size() || bytes_ + chain.bytes() > 4 * limit) remove(0).drain(release);
    chains_[count_++] = chain;
    bytes_ = bytes_ + chain.bytes();
  }
  /// Returns the newest chain of the size and stream; an empty one if there is none.
  Chain take(std::size_t size, std::uint64_t stream) noexcept {
    for (std::size_t i = count_; i-- > 0;) {
      if (chains_[i].size == size && chains_[i].top->stream == stream) return remove(i);
    }
    return {};
  }
  /// Calls release(Block*) for every block, or those of one stream.
  template <class Release>
  void drain(Release release) {
    while (count_ != 0) remove(count_ - 1).drain(release);
  }
  template <class Release>
  void drain_stream(std::uint64_t stream, Release release) {
    for (std::size_t i = count_; i-- > 0;) {
      if (chains_[i].top->stream == stream) remove(i).drain(release);
    }
  }

 private:
  Chain remove(std::size_t i) noexcept {
    const Chain chain = chains_[i];
    std::copy(chains_.begin() + i + 1, chains_.begin() + count_, chains_.begin() + i);
    --count_;
    bytes_ = bytes_ - chain.bytes();
    return chain;
  }

  std::array<Chain, 16> chains_{};  // oldest first
  std::size_t count_ = 0;
  Relaxed<std::size_t> bytes_ = 0;
};

}  // namespace poolgrad
