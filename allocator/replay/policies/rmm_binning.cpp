// RMM's binning_memory_resource as its benchmarks set it up, from its documentation.
//
// * Five bins of fixed-size blocks: 256 KiB, 512 KiB, 1 MiB, 2 MiB, 4 MiB. A request goes to the smallest bin that it
//   fits in; a larger one goes to the pool (rmm_pool.cpp).
// * A bin takes 128 blocks at a time from the pool and never gives them back. Each stream has a list of free blocks,
//   last in, first out; each free records an event. Without a block of its own, a stream takes all those of another
//   stream after waiting for its event, stream by stream; then the bin grows.
//
// Here a bin takes its first blocks when it is first used, not at construction. If 128 blocks do not fit, the
// allocation fails, as a fixed-size resource never asks for fewer.
#include <array>
#include <bit>

#include "allocator/replay/policies/model_policy.h"
#include "allocator/replay/policies/policies.h"
#include "allocator/replay/policies/rmm_pool.h"

namespace poolgrad {

namespace {

constexpr unsigned first_bin = 18;  // 2^18 bytes
constexpr std::size_t blocks_per_chunk = 128;
constexpr std::uint64_t pool_block = ~std::uint64_t{0};  // in Block::number, where other blocks have their bin

class RmmBinning : public ModelPolicy {
  static constexpr unsigned bins = 5;

 public:
  explicit RmmBinning(const PolicyContext& context) : ModelPolicy(context), pool_(device_, streams()) {
    for (auto& bin : bins_) bin.resize(streams());
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const auto log = static_cast<unsigned>(std::bit_width(bytes - 1));
    const unsigned bin = log < first_bin ? 0 : log - first_bin;
    if (bin >= bins) {
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
    const std::size_t size = std::size_t{1} << (first_bin + bin);
    const Block* chunk = pool_.allocate(blocks_per_chunk * size, stream);
    if (chunk == nullptr) return false;
    for (std::size_t i = blocks_per_chunk; i-- > 0;) {
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
  std::array<std::vector<List>, bins> bins_;  // by stream
};

}  // namespace

std::unique_ptr<Policy> make_rmm_binning(const PolicyContext& context) { return std::make_unique<RmmBinning>(context); }

}  // namespace poolgrad
