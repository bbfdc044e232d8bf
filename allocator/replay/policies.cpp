#include "allocator/replay/policies/policies.h"
#include "allocator/error.h"
#include "allocator/replay/offline_policies.h"
#include "allocator/replay/policy.h"
#include "allocator/replay/pool_policy.h"

namespace poolgrad {

const std::vector<PolicyEntry>& policies() {
  static const std::vector<PolicyEntry> entries = {
      {"pytorch", "best fit in segments of 2 MiB, 20 MiB or the request", true, make_pytorch_native},
      {"pytorch-expandable", "best fit in one growing segment per stream and size class", true,
       make_pytorch_expandable},
      {"cuda-async", "the driver's stream-ordered pool", true, make_cuda_async},
      {"rmm-pool", "best fit in a pool that doubles", true, make_rmm_pool},
      {"rmm-arena", "superblocks of a global arena for each stream", true, make_rmm_arena},
      {"rmm-binning", "fixed sizes up to 4 MiB, a pool above", true, make_rmm_binning},
      {"tensorflow-bfc", "best fit with coalescing in regions that double", true, make_tensorflow_bfc},
      {"cub", "bins of powers of eight up to 2 MiB, the device above", true, make_cub},
      {"gmlake", "PyTorch with stitching of blocks through virtual memory", true, make_gmlake},
      {"size-map-lru", "exact sizes up to twice the request, least recently used released", true, make_size_map_lru},
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
