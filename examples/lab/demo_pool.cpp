#include "examples/lab/demo_pool.h"

#include "allocator/memory_scope.h"

namespace poolgrad::examples {

DemoPool::DemoPool(std::size_t budget)
    : pool_(std::make_unique<SimulatedMemory>(0, 2 * budget), AllocatorConfig{.budget = budget}) {
  pool_.start_trace(std::size_t{1} << 16);
}

DemoPool::~DemoPool() { pool_.stop_trace(); }

DemoPool::Block DemoPool::allocate(std::size_t bytes, Category category, std::uint64_t stream) {
  const MemoryScope scope(category);
  return {pool_.allocate(bytes, 64, stream_of(stream)), bytes};
}

void DemoPool::free(Block& block, std::uint64_t stream) {
  if (block.pointer != nullptr) pool_.deallocate(block.pointer, block.bytes, 64, stream_of(stream));
  block.pointer = nullptr;
}

std::vector<RungRecord> DemoPool::take_rungs() {
  const Trace trace = pool_.trace();
  std::vector<RungRecord> rungs;
  for (; seen_ < trace.events.size(); ++seen_)
    if (const TraceEvent& event = trace.events[seen_]; event.kind == TraceKind::rung)
      rungs.push_back({std::string(to_string(static_cast<RungId>(event.rung))), event.size, event.address});
  return rungs;
}

std::size_t DemoClient::estimate() {
  std::size_t bytes = 0;
  for (const DemoPool::Block& block : blocks_) bytes += block.bytes;
  return bytes;
}

std::size_t DemoClient::reclaim(std::size_t bytes) {
  std::size_t freed = 0;
  while (freed < bytes && !blocks_.empty()) {
    freed += blocks_.back().bytes;
    pool_.free(blocks_.back());
    blocks_.pop_back();
  }
  return freed;
}

}  // namespace poolgrad::examples
