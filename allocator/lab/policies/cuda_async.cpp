// cudaMallocAsync on the device's default pool, as far as CUDA documents its decisions.
//
// * A size is a multiple of 512 bytes. The pool grows in steps of 32 MiB (observed), or of 2 MiB if 32 do not fit.
// * The stream of the free may reuse a block at once. Another stream gets it, in this order, if it already waits for
//   the free (`follow_event_dependencies`), if the free has finished (`opportunistic`), or after a wait that the driver
//   inserts (`internal_dependencies`). All three policies are on by default.
// * A synchronization releases memory without a live byte while the pool has more than `release_threshold`, 0 by
//   default. Each step of the workload counts as one, as training programs read their loss there.
// * If the device refuses, synchronizes it, releases all unused memory, and tries both the pool and the device once
//   more.
//
// The search is not documented. This model takes the best fit by (size, address), splits without a minimum rest, and
// merges neighbors freed on the same stream. Left out: the driver's remapping of unused parts of a pool, and memory of
// graphs.
#include <algorithm>

#include "allocator/lab/policies/chunk_heap.h"
#include "allocator/lab/policies/model_policy.h"

namespace poolgrad {

namespace {

constexpr std::size_t reserve_step = std::size_t{32} << 20;

std::size_t handles(std::size_t bytes) { return round_up_to(bytes, reserve_step) / reserve_step; }

class CudaAsync : public ModelPolicy {
  static constexpr std::size_t granule = 512;

 public:
  explicit CudaAsync(const PolicyContext& context)
      : ModelPolicy(context),
        release_threshold_(context.bytes("release_threshold", 0)),
        follows_events_(context.flag("follow_event_dependencies", true)),
        opportunistic_(context.flag("opportunistic", true)),
        makes_wait_(context.flag("internal_dependencies", true)),
        idle_(streams()),
        waited_(streams()) {}

  void order(const Operation& operation) override {
    if (operation.block < streams()) follow(operation.stream, operation.block);
  }

  void step() override { settle(release_threshold_); }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const std::size_t size = round_up_to(bytes, granule);
    Block* block = reuse(size, stream);
    if (block == nullptr) block = grow(size);
    if (block == nullptr) {
      device_.synchronize_all();
      settle(0);
      block = reuse(size, stream);
    }
    if (block == nullptr) block = grow(size);
    if (block != nullptr) heap_.trim(block, size);
    return block;
  }

  void release(Block* block, std::uint16_t stream) override {
    retire(block);
    freed_at_.push_back(device_.now());
    block->stream = stream;
    block->epoch = freed_at_.size();
    heap_.put(block);
  }

 private:
  Block* reuse(std::size_t size, std::uint16_t stream) {
    if (Block* block = heap_.take_fit(stream, size)) return block;
    if (Block* block = heap_.take_fit(idle_, size)) return block;
    const auto waits = [&](const Block* block) {
      return follows_events_ && !waited_[stream].empty() && waited_[stream][block->stream] >= block->epoch;
    };
    const auto finished = [&](const Block* block) {
      return opportunistic_ && freed_at_[block->epoch - 1] + ModelDevice::work_delay <= device_.now();
    };
    if (Block* block = take_of_others(size, waits)) return block;
    if (Block* block = take_of_others(size, finished)) return block;
    Block* block = take_of_others(size, [&](const Block*) { return makes_wait_; });
    if (block == nullptr) return nullptr;
    device_.wait(stream, device_.record(static_cast<std::uint16_t>(block->stream)));
    follow(stream, block->stream);
    return block;
  }

  // Makes the stream wait for all frees of the other so far, and for their dependencies.
  void follow(std::uint16_t stream, std::uint64_t other) {
    auto& waited = waited_[stream];
    const auto& others = waited_[other];
    waited.resize(streams());
    for (std::size_t i = 0; i < others.size(); ++i) waited[i] = std::max(waited[i], others[i]);
    waited[other] = freed_at_.size();
  }

  // The best fit of the first stream with an allowed best fit.
  template <class Allowed>
  Block* take_of_others(std::size_t size, Allowed allowed) {
    for (std::uint64_t other = 0; other < idle_; ++other) {
      Block* block = heap_.find(other, size);
      if (block == nullptr || !allowed(block)) continue;
      heap_.take(block);
      return block;
    }
    return nullptr;
  }

  Block* grow(std::size_t size) {
    for (const std::size_t unit : {reserve_step, ModelDevice::page}) {
      const std::size_t bytes = round_up_to(size, unit);
      if (device_.map(bytes, handles(bytes))) return heap_.add(device_.reserve(bytes), bytes, idle_);
    }
    return nullptr;
  }

  // All frees so far have finished: gives their blocks to any stream, and releases unused segments while more than
  // `kept` bytes are reserved.
  void settle(std::size_t kept) {
    for (std::uint64_t list = 0; list < idle_; ++list)
      for (Block* block : heap_.blocks(list)) heap_.move(block, idle_, 0);
    for (Block* block : heap_.whole_segments(idle_)) {
      if (device_.reserved() <= kept) return;
      device_.unmap(block->size, handles(block->size));
      heap_.remove(block);
    }
  }

  std::size_t release_threshold_;
  bool follows_events_, opportunistic_, makes_wait_;
  ChunkHeap heap_{granule};
  std::uint64_t idle_;                              // list of the blocks free for any stream
  std::vector<std::vector<std::uint64_t>> waited_;  // by stream, then by stream: the last free it waited for
  std::vector<double> freed_at_;                    // by (number of the free) - 1; a block's `epoch` is that number
};

}  // namespace

std::unique_ptr<Policy> make_cuda_async(const PolicyContext& context) { return std::make_unique<CudaAsync>(context); }

}  // namespace poolgrad
