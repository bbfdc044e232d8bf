#include "allocator/replay/pool_policy.h"

#include "allocator/memory_adaptor.h"
#include "allocator/simulated_memory.h"

namespace poolgrad {

namespace {

/// Counts calls and lets the simulated clock run on by what each costs.
class CountingMemory : public MemoryAdaptor {
 public:
  CountingMemory(std::unique_ptr<SimulatedMemory> memory, const LatencyTable& latency)
      : MemoryAdaptor(std::move(memory)), latency_(latency) {}

  SimulatedMemory& simulated() { return static_cast<SimulatedMemory&>(inner()); }
  std::size_t committed() const { return committed_; }
  const DeviceCounters& counters() const { return counters_; }

  void* reserve(std::size_t bytes) override {
    spend(latency_.reserve.of(bytes));
    return MemoryAdaptor::reserve(bytes);
  }
  bool commit(void* address, std::size_t bytes) override {
    spend(latency_.create.of(bytes));
    if (!MemoryAdaptor::commit(address, bytes)) return false;
    spend(latency_.map.of(bytes) + latency_.set_access.of(bytes));
    ++counters_.allocations;
    committed_ += bytes;
    return true;
  }
  void decommit(void* address, std::size_t bytes) noexcept override {
    spend(latency_.unmap.of(bytes) + latency_.release.of(bytes));
    ++counters_.frees;
    committed_ -= bytes;
    MemoryAdaptor::decommit(address, bytes);
  }
  bool move(void* from, void* to, std::size_t bytes) override {
    if (!inner().move(from, to, bytes)) return false;
    spend(latency_.unmap.of(bytes) + latency_.map.of(bytes) + latency_.set_access.of(bytes));
    return true;
  }
  bool divisible() const override { return divisible_; }
  EventId record_event(Stream stream) override {
    spend(latency_.event_record.call);
    ++counters_.events;
    return MemoryAdaptor::record_event(stream);
  }
  bool event_finished(EventId event) override {
    spend(latency_.event_query.call);
    return MemoryAdaptor::event_finished(event);
  }
  void stream_wait(Stream stream, EventId event) override {
    spend(latency_.stream_wait.call);
    ++counters_.waits;
    MemoryAdaptor::stream_wait(stream, event);
  }
  void synchronize(EventId event) override {
    spend(latency_.synchronize.call);
    ++counters_.synchronizations;
    const std::uint64_t before = simulated().now();
    MemoryAdaptor::synchronize(event);
    counters_.nanoseconds += static_cast<double>(simulated().now() - before);
  }

 private:
  void spend(double nanoseconds) {
    counters_.nanoseconds += nanoseconds;
    simulated().advance(static_cast<std::uint64_t>(nanoseconds));
  }

  LatencyTable latency_;
  std::size_t committed_ = 0;
  DeviceCounters counters_;
  bool divisible_ = inner().divisible();
};

std::size_t rounded(std::uint64_t bytes) { return bytes == 0 ? 64 : (bytes + 63) & ~std::uint64_t{63}; }

class PoolPolicy : public Policy {
 public:
  PoolPolicy(const PolicyContext& context, const AllocatorConfig& config) : pointers_(context.workload->blocks) {
    auto simulated = std::make_unique<SimulatedMemory>(0, context.capacity);
    simulated->set_event_delay(static_cast<std::uint64_t>(ModelDevice::work_delay));
    auto memory = std::make_unique<CountingMemory>(std::move(simulated), *context.latency);
    memory_ = memory.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(memory), config);
  }

  bool allocate(const Operation& operation) override {
    const auto result = pool_->try_allocate(
        {.bytes = operation.bytes, .stream = stream(operation.stream), .tag = {operation.category, 0}});
    void* const* pointer = std::get_if<void*>(&result);
    if (pointer == nullptr) return false;
    pointers_[operation.block] = *pointer;
    active_ += rounded(operation.bytes);
    return true;
  }
  void free(const Operation& operation) override {
    pool_->deallocate(pointers_[operation.block], operation.bytes, 64, stream(operation.stream));
    active_ -= rounded(operation.bytes);
  }
  void use(const Operation& operation) override { pool_->use(pointers_[operation.block], stream(operation.stream)); }
  void order(const Operation& operation) override {
    pool_->order(stream(operation.stream), stream(static_cast<std::uint16_t>(operation.block)));
  }
  void step() override { pool_->begin_step(); }
  void advance(double nanoseconds) override { memory_->simulated().advance(static_cast<std::uint64_t>(nanoseconds)); }
  std::size_t reserved() const override { return memory_->committed(); }
  std::size_t active() const override { return active_; }
  DeviceCounters counters() const override { return memory_->counters(); }

 private:
  Stream stream(std::uint16_t index) const { return {device_, index}; }

  const Device device_{DeviceType::sim, 0};
  CountingMemory* memory_ = nullptr;
  std::unique_ptr<CachingAllocator> pool_;
  std::vector<void*> pointers_;
  std::size_t active_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context) {
  return make_poolgrad(context, {.deterministic = true});
}

std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context, const AllocatorConfig& config) {
  return std::make_unique<PoolPolicy>(context, config);
}

}  // namespace poolgrad
