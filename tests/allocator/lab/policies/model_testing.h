// Calls one policy step by step, as replay() does for a workload.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/lab/policies/model_policy.h"
#include "tests/allocator/pool_testing.h"

namespace poolgrad::testing {

inline constexpr std::size_t GiB = 1024 * MiB;

class Model {
 public:
  using Factory = std::function<std::unique_ptr<Policy>(const PolicyContext&)>;

  Model(const Factory& make, std::size_t capacity, std::uint16_t streams = 1) {
    workload_.streams = streams;
    policy_ = make({.capacity = capacity, .latency = &latency_, .workload = &workload_});
  }
  /// `policy` is a name with options, as "pytorch:max_split=20MiB".
  Model(const char* policy, std::size_t capacity, std::uint16_t streams = 1)
      : Model(policy_named(policy).make, capacity, streams) {}

  /// Returns the number of the block, or an empty value if the policy refuses.
  std::optional<std::uint32_t> allocate(std::size_t bytes, std::uint16_t stream = 0) {
    const auto block = static_cast<std::uint32_t>(blocks_.size());
    blocks_.push_back({bytes, stream});
    if (!policy_->allocate(operation(OperationKind::allocate, block, stream))) return std::nullopt;
    requested_ += bytes;
    return block;
  }
  void free(std::optional<std::uint32_t> block) { free(block, blocks_.at(block.value()).stream); }
  void free(std::optional<std::uint32_t> block, std::uint16_t stream) {
    policy_->free(operation(OperationKind::free, block.value(), stream));
    requested_ -= blocks_[*block].bytes;
  }
  void use(std::optional<std::uint32_t> block, std::uint16_t stream) {
    policy_->use(operation(OperationKind::use, block.value(), stream));
  }
  /// Makes later work of `stream` wait for the earlier work of `other`.
  void order(std::uint16_t stream, std::uint16_t other) {
    policy_->order({.block = other, .stream = stream, .kind = OperationKind::order});
  }
  void step() { policy_->step(); }
  /// Finishes all queued work of the streams.
  void finish_work() { policy_->advance(1e9); }

  std::size_t reserved() const { return policy_->reserved(); }
  std::size_t active() const { return policy_->active(); }
  std::size_t requested() const { return requested_; }
  DeviceCounters counters() const { return policy_->counters(); }

 private:
  struct Request {
    std::size_t bytes;
    std::uint16_t stream;
  };
  Operation operation(OperationKind kind, std::uint32_t block, std::uint16_t stream) const {
    return {.bytes = blocks_[block].bytes, .block = block, .stream = stream, .kind = kind};
  }

  const LatencyTable latency_ = LatencyTable::named("unit");
  Workload workload_;
  std::unique_ptr<Policy> policy_;
  std::vector<Request> blocks_;
  std::size_t requested_ = 0;
};

}  // namespace poolgrad::testing
