// Policies that know the whole workload in advance.
#include <algorithm>
#include <map>
#include <vector>

#include "allocator/base/rounding.h"
#include "allocator/lab/replay/policy.h"
#include "allocator/planner/packer.h"

namespace poolgrad {

namespace {

class LowerBound : public Policy {
 public:
  explicit LowerBound(std::size_t capacity) : capacity_(capacity) {}

  bool allocate(const Operation& operation) override {
    if (operation.bytes > capacity_ - live_) return false;
    live_ += operation.bytes;
    return true;
  }
  void free(const Operation& operation) override { live_ -= operation.bytes; }
  std::size_t reserved() const override { return live_; }
  std::size_t active() const override { return live_; }
  DeviceCounters counters() const override { return {}; }

 private:
  std::size_t capacity_;
  std::size_t live_ = 0;
};

constexpr std::size_t packing_granule = 64;

std::size_t packed_size(std::uint64_t bytes) { return round_up(bytes, packing_granule); }

/// Block `i` lives from its allocation to its release, counted in operations.
std::vector<PackItem> items_of(const Workload& workload) {
  std::vector<PackItem> items(workload.blocks);
  const auto end = static_cast<std::uint32_t>(workload.operations.size());
  for (std::uint32_t i = 0; i < end; ++i) {
    const Operation& operation = workload.operations[i];
    if (operation.kind == OperationKind::allocate) items[operation.block] = {operation.bytes, i, end};
    if (operation.kind == OperationKind::free) items[operation.block].end = i;
  }
  return items;
}

/// Caches the packing: a search for the smallest capacity asks repeatedly.
const Packing& packing_of(std::vector<PackItem> items) {
  thread_local std::vector<PackItem> known;
  thread_local Packing packing;
  if (items != known) {
    packing = pack(items, packing_granule);
    known = std::move(items);
  }
  return packing;
}

/// The streams that used each byte of the slab since its last allocation.
class LastUsers {
 public:
  explicit LastUsers(std::uint64_t bytes) { users_[0] = {bytes, {}}; }

  /// Allocates the range to `stream`; calls visit(other) for each other stream that used a part of it.
  template <class Visit>
  void take(std::uint64_t begin, std::uint64_t end, std::uint16_t stream, Visit visit) {
    std::vector<std::uint16_t> others;
    auto range = std::prev(users_.upper_bound(begin));
    if (range->first < begin) range = cut(range, begin);
    while (range != users_.end() && range->first < end) {
      if (range->second.end > end) cut(range, end);
      for (const std::uint16_t other : range->second.streams)
        if (other != stream && std::ranges::find(others, other) == others.end()) others.push_back(other);
      range = users_.erase(range);
    }
    std::ranges::for_each(others, visit);
    users_[begin] = {end, {stream}};
  }
  /// Records that `stream` uses the block at `begin`.
  void use(std::uint64_t begin, std::uint16_t stream) {
    std::vector<std::uint16_t>& streams = users_.at(begin).streams;
    if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
  }

 private:
  struct Range {
    std::uint64_t end;
    std::vector<std::uint16_t> streams;
  };
  using Ranges = std::map<std::uint64_t, Range>;

  Ranges::iterator cut(Ranges::iterator range, std::uint64_t at) {
    const Range upper = range->second;
    range->second.end = at;
    return users_.emplace(at, upper).first;
  }

  Ranges users_;
};

class Planned : public Policy {
 public:
  explicit Planned(const PolicyContext& context)
      : device_(context.capacity, *context.latency, context.workload->streams),
        packing_(packing_of(items_of(*context.workload))),
        users_(packing_.bytes),
        one_stream_(context.workload->streams == 1) {}

  bool allocate(const Operation& operation) override {
    if (slab_ == 0) {
      slab_ = device_.allocate(packing_.bytes);
      if (slab_ == 0) return false;
    }
    const std::size_t bytes = packed_size(operation.bytes);
    active_ += bytes;
    if (one_stream_ || bytes == 0) return true;
    const std::uint64_t offset = packing_.offsets[operation.block];
    users_.take(offset, offset + bytes, operation.stream,
                [&](std::uint16_t other) { device_.wait(operation.stream, device_.record(other)); });
    return true;
  }
  void free(const Operation& operation) override {
    use(operation);
    active_ -= packed_size(operation.bytes);
  }
  void use(const Operation& operation) override {
    if (!one_stream_ && operation.bytes > 0) users_.use(packing_.offsets[operation.block], operation.stream);
  }
  void order(const Operation& operation) override {
    device_.wait(operation.stream, device_.record(static_cast<std::uint16_t>(operation.block)));
  }
  void advance(double nanoseconds) override { device_.advance(nanoseconds); }
  std::size_t reserved() const override { return device_.reserved(); }
  std::size_t active() const override { return active_; }
  DeviceCounters counters() const override { return device_.counters(); }

 private:
  ModelDevice device_;
  Packing packing_;
  LastUsers users_;
  bool one_stream_;
  std::uintptr_t slab_ = 0;
  std::size_t active_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_lower_bound(const PolicyContext& context) {
  return std::make_unique<LowerBound>(context.capacity);
}

std::unique_ptr<Policy> make_planned(const PolicyContext& context) { return std::make_unique<Planned>(context); }

}  // namespace poolgrad
