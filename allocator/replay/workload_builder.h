// Writes a workload operation by operation, and random numbers that are the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/replay/workload.h"

namespace poolgrad {

class WorkloadBuilder {
 public:
  /// Every operation takes `think` nanoseconds of the program's own time.
  explicit WorkloadBuilder(std::uint32_t think = 3000) : think_(think) {}

  /// Returns the block.
  std::uint32_t allocate(std::uint64_t bytes, Category category, std::uint16_t stream = 0);
  /// On the stream that it was allocated on, or on another.
  void free(std::uint32_t block);
  void free(std::uint32_t block, std::uint16_t stream);
  /// In the order given.
  void free(const std::vector<std::uint32_t>& blocks);
  void use(std::uint32_t block, std::uint16_t stream);
  /// Later work of `later` waits for the work so far of `earlier`.
  void order(std::uint16_t later, std::uint16_t earlier);
  void step();

  std::uint64_t bytes(std::uint32_t block) const { return blocks_[block].bytes; }
  Workload take(std::string_view name, std::string_view description);

 private:
  Operation& add(OperationKind kind, std::uint16_t stream);

  std::uint32_t think_;
  Workload workload_;
  std::vector<Operation> blocks_;  // their allocations
};

/// Number `counter` of a random sequence (splitmix64).
constexpr std::uint64_t random_bits(std::uint64_t counter) {
  std::uint64_t x = (counter + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Each call is the next number.
class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t seed) : counter_(seed << 32) {}
  /// 0 <= result < `below`.
  std::uint64_t operator()(std::uint64_t below) { return random_bits(counter_++) % below; }
  /// `low` <= result <= `high`.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + (*this)(high - low + 1); }

 private:
  std::uint64_t counter_;
};

}  // namespace poolgrad
