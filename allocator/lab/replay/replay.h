// Runs a workload through a policy and measures it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "allocator/lab/replay/policy.h"

namespace poolgrad {

/// Peak requested, in whole pages of 2 MiB, / peak reserved: a policy's own rounding counts as waste. At most 1, and 1
/// if nothing was reserved.
double utilisation(std::size_t peak_requested, std::size_t peak_reserved);

struct ReplayResult {
  std::string policy;
  std::string workload;
  std::size_t capacity = 0;
  std::size_t lower_bound = 0;  // in whole pages of 2 MiB
  std::size_t peak_reserved = 0;
  std::size_t peak_active = 0;               // live bytes as the policy rounded them, and pending ones
  std::size_t peak_requested = 0;            // live requested bytes
  std::optional<std::size_t> out_of_memory;  // index of the first allocation that failed; the replay ends there
  std::optional<std::uint64_t> out_of_memory_step;
  DeviceCounters counters;
  double modelled_ns = 0;        // device time: all calls by the latency table, and the waits
  double seconds = 0;            // wall clock
  std::uint64_t operations = 0;  // replayed

  double utilisation() const { return poolgrad::utilisation(peak_requested, peak_reserved); }
};

struct ReplayOptions {
  std::size_t capacity = std::size_t{1} << 40;  // bytes
  const LatencyTable* latency = nullptr;        // nullptr: "unit"
};

ReplayResult replay(const Workload& workload, const PolicyEntry& policy, const ReplayOptions& options = {});

/// The smallest capacity, a multiple of 2 MiB, at which the policy serves the whole workload. Bisects between the lower
/// bound and the unlimited reserved bytes. The result passes and one page less fails; a policy whose growth depends on
/// the capacity may also pass further below. None if 2^50 bytes do not suffice: a policy may refuse a size, or have its
/// own limit.
std::optional<std::size_t> smallest_capacity(const Workload& workload, const PolicyEntry& policy,
                                             const ReplayOptions& options = {});

}  // namespace poolgrad
