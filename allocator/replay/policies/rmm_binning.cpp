// RMM's binning_memory_resource as its benchmarks set it up, from its documentation.
//
// * Bins of fixed-size blocks of 256 KiB, 512 KiB, 1 MiB, 2 MiB and 4 MiB, or from `smallest_bin` to `largest_bin`. A
// request goes to the smallest bin that it
//   fits in; a larger one goes to the pool (rmm_pool.cpp).
// * A bin takes 128 blocks (`blocks`) at a time from the pool and never gives them back. Each stream has a list of free
// blocks,
//   last in, first out; each free records an event. Without a block of its own, a stream takes all those of another
//   stream after waiting for its event, stream by stream; then the bin grows.
//
// Here a bin takes its first blocks when it is first used, not at construction. If 128 blocks do not fit, the
// allocation fails, as a fixed-size resource never asks for fewer.
#include <algorithm>
#include <bit>

#include "allocator/replay/policies/model_policy.h"
#include "allocator/replay/policies/policies.h"
#include "allocator/replay/policies/rmm_pool.h"

namespace poolgrad {

namespace {

constexpr std::uint64_t pool_block = ~std::uint64_t{0};  // in Block::number, where other blocks have their bin

class RmmBinning : public ModelPolicy {
  static constexpr std::size_t most_blocks = std::size_t{1} << 16;

 public:
  explicit RmmBinning(const PolicyContext& context)
      : ModelPolicy(context),
        pool_(device_, streams()),
        first_bin_(bin_log(context, "smallest_bin", std::size_t{1} << 18)),
        blocks_per_chunk_(context.count("blocks", 128)) {
    const unsigned last = bin_log(context, "largest_bin", std::max(std::size_t{1} << 22, std::size_t{1} << first_bin_));
    if (last < first_bin_) context.refuse("largest_bin", "at least the smallest");
    if (blocks_per_chunk_ > most_blocks) context.refuse("blocks", "at most " + std::to_string(most_blocks));
    bins_.resize(last - first_bin_ + 1, std::vector<List>(streams()));
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const auto log = static_cast<unsigned>(std::bit_width(bytes - 1));
    const unsigned bin = log < first_bin_ ? 0 : log - first_bin_;
    if (bin >= bins_.size()) {
      Block* block = pool_.allocate(bytes, stream);
      if (block != nullptr) block->number = pool_block;
      return block;
    }
    auto& lists = bins_[bin];
    if (lists[stream].blocks.empty() && !take_others(lists, stream) && !grow(bin, stream)) return nullptr;
    Block* block = lists[stream].blocks.back();
    lists[stream].blocks.pop_back();
    return block;
  }

  void release(Block* block, std::uint16_t stream) override {
    retire(block);
    if (block->number == pool_block) {
      block->number = 0;
      pool_.deallocate(block, stream);
      return;
    }
    List& list = bins_[block->number][stream];
    list.event = device_.record(stream);
    list.blocks.push_back(block);
  }

 private:
  struct List {
    std::vector<Block*> blocks;
    std::uint64_t event = 0;  // of the latest free; 0 if there was none
  };

  // Of a bin's block size, 256 bytes to 1 GiB.
  static unsigned bin_log(const PolicyContext& context, std::string_view parameter, std::size_t otherwise) {
    const std::size_t bytes = context.bytes(parameter, otherwise);
    if (!std::has_single_bit(bytes) || bytes < 256 || bytes > std::size_t{1} << 30) {
      context.refuse(parameter, "a power of two from 256 bytes to 1 GiB");
    }
    return static_cast<unsigned>(std::countr_zero(bytes));
  }

  bool take_others(std::vector<List>& lists, std::uint16_t stream) {
    for (List& other : lists) {
      if (other.blocks.empty()) continue;
      if (other.event != 0) device_.wait(stream, other.event);
      lists[stream].blocks.swap(other.blocks);
      return true;
    }
    return false;
  }

  bool grow(unsigned bin, std::uint16_t stream) {
    const std::size_t size = std::size_t{1} << (first_bin_ + bin);
    const Block* chunk = pool_.allocate(blocks_per_chunk_ * size, stream);
    if (chunk == nullptr) return false;
    for (std::size_t i = blocks_per_chunk_; i-- > 0;) {
      Block* block = store_.make();
      block->address = chunk->address + i * size;
      block->size = size;
      block->number = bin;
      bins_[bin][stream].blocks.push_back(block);
    }
    return true;
  }

  RmmPool pool_;
  BlockStore store_;
  unsigned first_bin_;  // log2 of its blocks' bytes
  std::size_t blocks_per_chunk_;
  std::vector<std::vector<List>> bins_;  // by bin, then by stream
};

}  // namespace

std::unique_ptr<Policy> make_rmm_binning(const PolicyContext& context) { return std::make_unique<RmmBinning>(context); }

}  // namespace poolgrad
