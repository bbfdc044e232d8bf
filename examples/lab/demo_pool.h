// A pool on a simulated device whose ladder can be watched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/rung.h"
#include "allocator/simulated_memory.h"

namespace poolgrad::examples {

/// What one rung did.
struct RungRecord {
  std::string name;
  std::size_t bytes = 0;
  std::uint64_t nanoseconds = 0;
};

class DemoPool {
 public:
  /// A device with twice the budget, so that the budget is what runs out.
  explicit DemoPool(std::size_t budget);
  ~DemoPool();
  DemoPool(const DemoPool&) = delete;
  DemoPool& operator=(const DemoPool&) = delete;

  struct Block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
  };

  Block allocate(std::size_t bytes, Category category, std::uint64_t stream = 0);
  void free(Block& block, std::uint64_t stream = 0);
  void use(const Block& block, std::uint64_t stream) { pool_.use(block.pointer, stream_of(stream)); }

  CachingAllocator& pool() { return pool_; }
  SimulatedMemory& memory() { return static_cast<SimulatedMemory&>(pool_.memory()); }
  /// Rungs since the last call.
  std::vector<RungRecord> take_rungs();

 private:
  Stream stream_of(std::uint64_t id) const { return {pool_.device(), id}; }

  CachingAllocator pool_;
  std::size_t seen_ = 0;  // events
};

/// A client that holds blocks of the pool and gives them up when asked.
class DemoClient : public ReclaimClient {
 public:
  DemoClient(DemoPool& pool, std::string name, RungId kind, double price_per_byte)
      : pool_(pool), name_(std::move(name)), kind_(kind), price_(price_per_byte) {}
  ~DemoClient() override { reclaim(SIZE_MAX); }

  void hold(std::size_t bytes, Category category) { blocks_.push_back(pool_.allocate(bytes, category)); }
  std::string name() const override { return name_; }
  RungId kind() const override { return kind_; }
  double price_per_byte() const override { return price_; }
  std::size_t estimate() override;
  std::size_t reclaim(std::size_t bytes) override;

 private:
  DemoPool& pool_;
  std::string name_;
  RungId kind_;
  double price_;
  std::vector<DemoPool::Block> blocks_;
};

}  // namespace poolgrad::examples
