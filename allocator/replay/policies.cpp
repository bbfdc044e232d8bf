#include "allocator/error.h"
#include "allocator/replay/offline_policies.h"
#include "allocator/replay/policy.h"
#include "allocator/replay/pool_policy.h"

namespace poolgrad {

const std::vector<PolicyEntry>& policies() {
  static const std::vector<PolicyEntry> entries = {
      {"poolgrad", "this project's pool, deterministic", true,
       [](const PolicyContext& context) { return make_poolgrad(context); }},
      {"planned", "one slab, packed with knowledge of the whole workload", false, make_planned},
      {"lower-bound", "largest live requested bytes", false, make_lower_bound},
  };
  return entries;
}

const PolicyEntry& policy_named(std::string_view name) {
  std::string known;
  for (const PolicyEntry& entry : policies()) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw ValueError("[policy] unknown policy '" + std::string(name) + "'; known policies: " + known);
}

}  // namespace poolgrad
