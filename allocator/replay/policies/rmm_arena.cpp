// RMM's arena_memory_resource, from its documentation and the rules of its source.
//
// * All memory is taken at the start, as the global arena: its size is what a program allows, here the whole capacity
//   unless `arena_size` is given (RMM takes half of the free memory if a program names no size). If the device has
//   less, everything is refused. Nothing is given back.
// * A size is a multiple of 256 bytes. Each stream has an arena of its own that takes superblocks of 1 MiB from the
//   global arena; requests above 1 MiB are blocks of the global arena. Everywhere the lowest address that fits is
//   taken, the rest split off, and free neighbours of the same superblock, or of the global arena, merge at once.
// * A free of a block of the global arena, or of another stream's arena, synchronises the stream.
// * When the global arena has no fit, the device is synchronised, all superblocks without a live byte return to the
// global
//   arena, and the allocation is tried once more.
//
// Left out: the optional table of size classes, and arenas of threads.
#include "allocator/replay/policies/chunk_heap.h"
#include "allocator/replay/policies/model_policy.h"
#include "allocator/replay/policies/policies.h"

namespace poolgrad {

namespace {

constexpr std::size_t superblock = std::size_t{1} << 20;
constexpr std::uint64_t global = 0;  // list; stream s has s + 1

class RmmArena : public ModelPolicy {
  static constexpr std::size_t granule = 256;

 public:
  explicit RmmArena(const PolicyContext& context) : ModelPolicy(context) {
    const std::size_t all = device_.capacity() / ModelDevice::page * ModelDevice::page;
    const std::size_t bytes = context.bytes("arena_size", all, ModelDevice::page);
    if (bytes == 0) return;
    if (const std::uintptr_t address = device_.allocate(bytes)) heap_.put(heap_.add(address, bytes, global));
  }

 protected:
  Block* place(std::size_t bytes, std::uint16_t stream) override {
    const std::size_t size = round_up_to(bytes, granule);
    Block* block = find(size, stream);
    if (block == nullptr && defragment()) block = find(size, stream);
    if (block != nullptr) heap_.trim(block, size);
    return block;
  }

  void release(Block* block, std::uint16_t stream) override {
    if (block->stream != list_of(stream)) device_.synchronize_stream(stream);
    retire(block);
    heap_.put(block);
  }

 private:
  static std::uint64_t list_of(std::uint16_t stream) { return std::uint64_t{stream} + 1; }

  Block* find(std::size_t size, std::uint16_t stream) {
    if (size > superblock) return heap_.take_fit(global, size);
    if (Block* block = heap_.take_fit(list_of(stream), size)) return block;
    Block* block = heap_.take_fit(global, superblock);
    if (block == nullptr) return nullptr;
    heap_.trim(block, superblock);
    block->stream = list_of(stream);
    block->number = ++superblocks_;
    return block;
  }

  // Whether superblocks came back.
  bool defragment() {
    device_.synchronize_all();
    bool any = false;
    for (std::uint64_t list = global + 1; list < heap_.lists(); ++list) {
      for (Block* block : heap_.blocks(list)) {
        if (block->size != superblock) continue;
        heap_.take(block);
        block->stream = global;
        block->number = 0;
        heap_.put(block);
        any = true;
      }
    }
    return any;
  }

  FirstFitHeap heap_{granule};
  std::uint64_t superblocks_ = 0;  // handed to streams so far; names them in Block::number
};

}  // namespace

std::unique_ptr<Policy> make_rmm_arena(const PolicyContext& context) { return std::make_unique<RmmArena>(context); }

}  // namespace poolgrad
