#include <algorithm>
#include <optional>

#include "allocator/caching_allocator.h"
#include "allocator/lab/replay/policy.h"
#include "allocator/memory/simulated_memory.h"
#include "allocator/pool/pool_context.h"

namespace poolgrad {

namespace {

class PoolPolicy : public Policy {
 public:
  PoolPolicy(const PolicyContext& context, const AllocatorConfig& config, Trace* trace)
      : several_streams_(context.workload->streams > 1), trace_(trace), pointers_(context.workload->blocks) {
    auto memory = std::make_unique<SimulatedMemory>(device_.index, context.capacity,
                                                    SimulationOptions{.latency = *context.latency});
    memory->set_event_delay(static_cast<std::uint64_t>(ModelDevice::work_delay));
    memory_ = memory.get();
    pool_ = std::make_unique<CachingAllocator>(std::move(memory), config);
    settings_.emplace(*memory_, config);
    if (trace_ != nullptr)
      pool_->start_trace(4 * context.workload->operations.size() + 4096);  // plus stages and commits
  }
  ~PoolPolicy() override {
    if (trace_ != nullptr) *trace_ = pool_->trace();
  }
  PoolPolicy(const PoolPolicy&) = delete;
  PoolPolicy& operator=(const PoolPolicy&) = delete;

  bool allocate(const Operation& operation) override {
    const auto result = pool_->try_allocate({.bytes = operation.bytes,
                                             .alignment = alignment(operation),
                                             .stream = stream(operation.stream),
                                             .tag = {operation.category, 0}});
    void* const* pointer = std::get_if<void*>(&result);
    if (pointer == nullptr) return false;
    pointers_[operation.block] = *pointer;
    live_ += rounded(operation);
    return true;
  }
  void free(const Operation& operation) override {
    pool_->deallocate(pointers_[operation.block], operation.bytes, alignment(operation), stream(operation.stream));
    live_ -= rounded(operation);
  }
  void use(const Operation& operation) override { pool_->use(pointers_[operation.block], stream(operation.stream)); }
  void order(const Operation& operation) override {
    pool_->order(stream(operation.stream), stream(static_cast<std::uint16_t>(operation.block)));
  }
  void step() override { pool_->begin_step(); }
  void advance(double nanoseconds) override {
    // With one stream there are no waits, so the clock does not matter.
    if (several_streams_) memory_->advance(static_cast<std::uint64_t>(nanoseconds));
  }
  std::size_t reserved() const override {
    const MemoryInfo info = memory_->info();
    return info.total - info.free;
  }
  // Ask the pool, which is slower, only if blocks may be pending.
  std::size_t active() const override { return several_streams_ ? pool_->active_bytes() : live_; }
  DeviceCounters counters() const override {
    const DriverCalls calls = memory_->calls();
    return {.allocations = calls.create.calls,
            .frees = calls.release.calls,
            .events = calls.event_record.calls,
            .waits = calls.stream_wait.calls,
            .synchronizations = calls.synchronize.calls,
            .nanoseconds = static_cast<double>(calls.total().nanoseconds)};
  }

 private:
  Stream stream(std::uint16_t index) const { return {device_, index}; }
  static std::size_t alignment(const Operation& operation) {
    return std::size_t{1} << std::max<unsigned>(operation.alignment, 6);
  }
  std::size_t rounded(const Operation& operation) const {
    return settings_->rounded(operation.bytes, alignment(operation));
  }

  const Device device_{DeviceType::sim, 0};
  bool several_streams_;
  Trace* trace_;
  SimulatedMemory* memory_ = nullptr;
  std::unique_ptr<CachingAllocator> pool_;
  std::optional<PoolSettings> settings_;  // of the pool
  std::vector<void*> pointers_;
  std::size_t live_ = 0;  // bytes, rounded
};

}  // namespace

std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context) {
  std::string text = "deterministic:on";
  for (const auto& [key, value] : context.parameters) text += "," + key + ":" + value;
  return make_poolgrad(context, AllocatorConfig::parse(text));
}

std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context, const AllocatorConfig& config, Trace* trace) {
  return std::make_unique<PoolPolicy>(context, config, trace);
}

}  // namespace poolgrad
