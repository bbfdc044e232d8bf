// A workload for replay: a sequence of allocations and frees without addresses, so that any policy may place them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/random.h"
#include "allocator/memory_scope.h"
#include "allocator/trace/trace.h"

namespace poolgrad {

enum class OperationKind : std::uint8_t {
  allocate,  // `block` of `bytes` for `stream`
  free,      // of `block` on `stream`
  use,       // `stream` uses `block`, which another stream allocated
  order,     // later work of `stream` waits for the work so far of stream `block`
  step       // a training step starts
};

struct Operation {
  std::uint64_t bytes = 0;  // of the block, for frees too
  std::uint32_t block = 0;  // 0, 1, 2, ... by order of allocation
  std::uint32_t think = 0;  // nanoseconds before it
  std::uint16_t stream = 0;
  OperationKind kind = OperationKind::allocate;
  Category category = Category::unknown;
  std::uint8_t alignment = 0;  // log2 of the block's alignment if above 64 bytes

  friend bool operator==(const Operation&, const Operation&) = default;
};

struct Workload {
  std::string name;
  std::string description;  // one line
  std::vector<Operation> operations;
  std::uint32_t blocks = 0;   // allocations in `operations`
  std::uint16_t streams = 1;  // indices 0, 1, ...

  /// Largest sum of live requested bytes at any time.
  std::size_t peak_requested() const;
  /// The same in whole pages of 2 MiB: no policy can hold less.
  std::size_t lower_bound() const;
};

/// The operations of a trace. It starts with the blocks that existed before the trace: freed without an allocation, or
/// live at the end without one. Leaves out failed allocations, or (`with_failed`) frees each at once. Throws ValueError
/// with the event's number for an inconsistent trace (a block freed twice, an unknown kind).
Workload workload_of(const Trace& trace, const std::string& name, bool with_failed = false);

/// Builds a workload operation by operation.
class WorkloadBuilder {
 public:
  /// Every operation follows `think` nanoseconds of the program's own time.
  explicit WorkloadBuilder(std::uint32_t think = 3000) : think_(think) {}

  /// Returns the block's number.
  std::uint32_t allocate(std::uint64_t bytes, Category category, std::uint16_t stream = 0);
  /// Frees on the allocation's stream, or on another.
  void free(std::uint32_t block) { free(block, blocks_[block].stream); }
  void free(std::uint32_t block, std::uint16_t stream) { add(OperationKind::free, stream, blocks_[block]); }
  /// Frees in the given order.
  void free(const std::vector<std::uint32_t>& blocks) {
    for (const std::uint32_t block : blocks) free(block);
  }
  void use(std::uint32_t block, std::uint16_t stream) { add(OperationKind::use, stream, blocks_[block]); }
  /// Makes later work of `later` wait for the work so far of `earlier`.
  void order(std::uint16_t later, std::uint16_t earlier);
  void step() { add(OperationKind::step, 0); }

  std::uint64_t bytes(std::uint32_t block) const { return blocks_[block].bytes; }
  Workload take(std::string_view name, std::string_view description);

 private:
  /// Adds an operation on the block of `allocation`.
  void add(OperationKind kind, std::uint16_t stream, Operation allocation = {});

  std::uint32_t think_;
  Workload workload_;
  std::vector<Operation> blocks_;  // their allocations
};

/// Each call returns the next random number.
class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t seed) : counter_(seed << 32) {}
  /// 0 <= result < `below`.
  std::uint64_t operator()(std::uint64_t below) { return random_below(0, counter_++, below); }
  /// `low` <= result <= `high`.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + (*this)(high - low + 1); }

 private:
  std::uint64_t counter_;
};

}  // namespace poolgrad
