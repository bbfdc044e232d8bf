// One way to serve a workload from a device of limited capacity. Each policy is a model of an allocator's documented
// behaviour, or the real pool on a simulated device; all are driven by replay().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/memory_scope.h"
#include "allocator/replay/model_device.h"
#include "allocator/replay/workload.h"

namespace poolgrad {

struct AllocatorConfig;

class Policy {
 public:
  virtual ~Policy() = default;

  /// Places `block`; false if it cannot within the capacity, and the policy can go on.
  virtual bool allocate(const Operation& operation) = 0;
  /// Gives back a block that allocate() placed.
  virtual void free(const Operation& operation) = 0;
  virtual void use(const Operation&) {}
  virtual void order(const Operation&) {}
  virtual void step() {}
  /// Time passes before the next operation: `ModelDevice::advance` for those that have one.
  virtual void advance(double /*nanoseconds*/) {}

  /// Bytes held of the device now.
  virtual std::size_t reserved() const = 0;
  /// Bytes of blocks handed out now as the policy rounded them, and of those that still wait for a stream.
  virtual std::size_t active() const = 0;
  /// Calls to the device so far, and what they cost.
  virtual DeviceCounters counters() const = 0;
};

struct PolicyContext {
  std::size_t capacity = 0;  // bytes; the device's, and the budget
  const LatencyTable* latency = nullptr;
  const Workload* workload = nullptr;  // never nullptr for replay(); the number of streams is from it; for `planned`
                                       // and `lower bound`, which know the future
  std::string_view policy = {};        // whose parameters these are, for errors
  std::map<std::string, std::string, std::less<>> parameters = {};  // those that were given, by name

  // The value of a parameter, or `otherwise` if it was not given. Throw ValueError with one sentence for anything else.
  /// "20MiB"; a multiple of `multiple`.
  std::size_t bytes(std::string_view parameter, std::size_t otherwise, std::size_t multiple = 1) const;
  /// "16", from 1.
  std::size_t count(std::string_view parameter, std::size_t otherwise) const;
  /// "0.8": above 0 and below 1.
  double fraction(std::string_view parameter, double otherwise) const;
  /// "on" or "off".
  bool flag(std::string_view parameter, bool otherwise) const;
  /// "[policy] pytorch: max_split must be `what`, got '...'".
  [[noreturn]] void refuse(std::string_view parameter, const std::string& what) const;
};

// The policies of this project; models of other projects' allocators are in allocator/replay/policies.

/// The real CachingAllocator, on a simulated device.
std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context);
/// The same with other settings; the budget is min(context.capacity, config.budget).
std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context, const AllocatorConfig& config);
/// Knows the whole workload before it begins: all blocks at fixed offsets of one slab, packed before the start. A block
/// that takes over bytes which another stream used last makes its stream wait.
std::unique_ptr<Policy> make_planned(const PolicyContext& context);
/// Holds exactly the live requested bytes: what no allocator can do better than.
std::unique_ptr<Policy> make_lower_bound(const PolicyContext& context);

/// What a policy lets its users choose.
struct PolicyParameter {
  std::string_view name;
  std::string_view description;  // one line, with the default
};

/// A named policy of the comparison.
struct PolicyEntry {
  std::string_view name;         // "pytorch", "rmm-pool", "poolgrad", ...
  std::string_view description;  // one line
  bool online = true;            // false: it knows the future
  std::function<std::unique_ptr<Policy>(const PolicyContext&)> make;
  std::vector<PolicyParameter> parameters = {};
};

/// All policies, in the order of the comparison table.
const std::vector<PolicyEntry>& policies();
/// "pytorch", or with parameters "pytorch:max_split=20MiB,max_non_split_rounding=4MiB"; what it returns is kept. Throws
/// ValueError that lists the known names or parameters.
const PolicyEntry& policy_named(std::string_view text);

}  // namespace poolgrad
