// A way to serve a workload from a device of limited capacity: a model of an allocator's documented behavior, or the
// real pool on a simulated device. replay() drives all policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/lab/replay/model_device.h"
#include "allocator/lab/replay/workload.h"
#include "allocator/memory_scope.h"

namespace poolgrad {

struct AllocatorConfig;

class Policy {
 public:
  virtual ~Policy() = default;

  /// Allocates `block`. Returns false if it does not fit; the policy stays usable.
  virtual bool allocate(const Operation& operation) = 0;
  /// Frees a block from allocate().
  virtual void free(const Operation& operation) = 0;
  virtual void use(const Operation&) {}
  virtual void order(const Operation&) {}
  virtual void step() {}
  /// Advances the clock before the next operation, for policies with a ModelDevice.
  virtual void advance(double /*nanoseconds*/) {}

  /// Bytes reserved on the device now.
  virtual std::size_t reserved() const = 0;
  /// Bytes of live blocks, as the policy rounded them, and of pending ones.
  virtual std::size_t active() const = 0;
  /// Device calls so far and their time.
  virtual DeviceCounters counters() const = 0;
};

struct PolicyContext {
  std::size_t capacity = 0;  // bytes; limits the device, and is the budget
  const LatencyTable* latency = nullptr;
  const Workload* workload = nullptr;  // set by replay(); gives the number of streams, and the future
                                       // to `planned` and `lower bound`
  std::string_view policy = {};        // the owner of the parameters, for errors
  std::map<std::string, std::string, std::less<>> parameters = {};  // given ones, by name

  // The value of a parameter, or `otherwise` if it was not given. All throw ValueError for an invalid value.
  /// "20MiB"; a multiple of `multiple`.
  std::size_t bytes(std::string_view parameter, std::size_t otherwise, std::size_t multiple = 1) const;
  /// "16"; at least 1.
  std::size_t count(std::string_view parameter, std::size_t otherwise) const;
  /// "0.8": above 0 and below 1.
  double fraction(std::string_view parameter, double otherwise) const;
  /// "on" or "off".
  bool flag(std::string_view parameter, bool otherwise) const;
  /// "[policy] pytorch: max_split must be `what`, got '...'".
  [[noreturn]] void refuse(std::string_view parameter, const std::string& what) const;
};

// The policies of this project; allocator/lab/policies also has models of other projects' allocators.

/// The real CachingAllocator, on a simulated device.
std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context);
/// The same with other settings; the budget is min(context.capacity, config.budget). The policy's destructor writes the
/// pool's trace to `trace`, if given.
std::unique_ptr<Policy> make_poolgrad(const PolicyContext& context, const AllocatorConfig& config,
                                      Trace* trace = nullptr);
/// Knows the whole workload in advance: packs all blocks at fixed offsets of one slab. A block waits for other streams
/// that last used its bytes.
std::unique_ptr<Policy> make_planned(const PolicyContext& context);
/// Holds exactly the live requested bytes, the optimum of any allocator.
std::unique_ptr<Policy> make_lower_bound(const PolicyContext& context);

/// A parameter that users may set.
struct PolicyParameter {
  std::string_view name;
  std::string_view description;  // one line, with the default
};

/// A named policy of the comparison.
struct PolicyEntry {
  std::string_view name;         // "pytorch", "rmm-pool", "poolgrad", ...
  std::string_view description;  // one line
  bool online = true;            // false: knows the workload in advance
  std::function<std::unique_ptr<Policy>(const PolicyContext&)> make;
  std::vector<PolicyParameter> parameters = {};
};

/// All policies, in the order of the comparison table.
const std::vector<PolicyEntry>& policies();
/// Finds "pytorch", or "pytorch:max_split=20MiB,max_non_split_rounding=4MiB" with parameters. The result stays valid.
/// Throws ValueError that lists the known names or parameters.
const PolicyEntry& policy_named(std::string_view text);

}  // namespace poolgrad
