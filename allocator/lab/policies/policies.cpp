#include "allocator/lab/policies/model_policy.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/replay/policy.h"

namespace poolgrad {

const std::vector<PolicyEntry>& policies() {
  static const PolicyParameter divisions{"roundup_power2_divisions",
                                         "round sizes up to this many steps per power of two (default: none)"};
  static const PolicyParameter large_segment{"large_segment",
                                             "bytes taken for requests of 1 to 10 MiB (default: 20MiB)"};
  static const std::vector<PolicyEntry> entries = {
      {"pytorch",
       "best fit in segments of 2 MiB, 20 MiB or the request",
       true,
       make_pytorch_native,
       {{"max_split", "bytes from which blocks are not split (max_split_size_mb; default: no limit)"},
        {"max_non_split_rounding", "most bytes by which such a block may exceed a request (default: 20MiB)"},
        {"garbage_collection_threshold",
         "part of the capacity above which old cached segments are freed (default: off)"},
        divisions,
        large_segment}},
      {"pytorch-expandable",
       "best fit in one growing segment per stream and size class",
       true,
       make_pytorch_expandable,
       {divisions, {"large_segment", "bytes of a page of large blocks (default: 20MiB)"}}},
      {"cuda-async",
       "the driver's stream-ordered pool",
       true,
       make_cuda_async,
       {{"release_threshold", "bytes that the pool keeps at a synchronisation (default: 0)"},
        {"follow_event_dependencies", "reuse blocks that the stream already waits for: on (default) or off"},
        {"opportunistic", "reuse finished blocks: on (default) or off"},
        {"internal_dependencies", "make the stream wait for the blocks it reuses: on (default) or off"}}},
      {"rmm-pool",
       "best fit in a pool that doubles",
       true,
       make_rmm_pool,
       {{"initial_size", "bytes that the pool begins with (default: 0)"},
        {"maximum_size", "most bytes; the pool then grows by half of the rest (default: none, it doubles)"}}},
      {"rmm-arena",
       "superblocks of a global arena for each stream",
       true,
       make_rmm_arena,
       {{"arena_size", "bytes of the global arena (default: the capacity)"}}},
      {"rmm-binning",
       "fixed sizes up to 4 MiB, a pool above",
       true,
       make_rmm_binning,
       {{"smallest_bin", "bytes of the smallest blocks, a power of two (default: 256KiB)"},
        {"largest_bin", "bytes of the largest, a power of two (default: 4MiB)"},
        {"blocks", "blocks that a bin takes at a time (default: 128)"}}},
      {"tensorflow-bfc",
       "best fit with coalescing in regions that double",
       true,
       make_tensorflow_bfc,
       {{"allow_growth", "on (default), or off: take the whole capacity at once"},
        {"garbage_collection", "free unused regions when memory runs out: on (default) or off"},
        {"fragmentation_fraction", "smallest rest that is split off, as a part of the capacity (default: 128 MiB)"}}},
      {"cub",
       "bins of powers of eight up to 2 MiB, the device above",
       true,
       make_cub,
       {{"max_cached", "most bytes of cached blocks (max_cached_bytes; default: 6 MiB - 1)"}}},
      {"gmlake",
       "PyTorch with stitching of blocks through virtual memory",
       true,
       make_gmlake,
       {{"fragment_limit", "bytes from which blocks are stitched (fragment_limit; default here: all but small blocks)"},
        {"reuse_limit", "how much larger than the request a stitched block may be (reuseLimit; default: 10)"}}},
      {"size-map-lru",
       "exact sizes up to twice the request, least recently used released",
       true,
       make_size_map_lru,
       {{"memory_limit", "most active and cached bytes, as a part of the capacity (default: 0.95)"},
        {"cache_limit", "most cached bytes (default: no limit)"}}},
      {"poolgrad",
       "this project's pool, deterministic",
       true,
       [](const PolicyContext& context) { return make_poolgrad(context); },
       {{"alignment", "smallest alignment of every block (default: 64)"},
        {"decay", "allocations after which unused pages are released (default: never)"},
        {"deterministic", "on (default) or off"},
        {"magazines", "on (default) or off"},
        {"stitch", "move pages when no new ones can be committed: on (default) or off"},
        {"stitch_idle", "also move pages when many are idle: on or off (default)"}}},
      {"planned", "one slab, packed with knowledge of the whole workload", false, make_planned},
      {"lower-bound", "largest live requested bytes", false, make_lower_bound},
  };
  return entries;
}

void PolicyContext::refuse(std::string_view parameter, const std::string& what) const {
  throw ValueError("[policy] " + std::string(policy) + ": " + std::string(parameter) + " must be " + what + ", got " +
                   in_quotes(parameters.find(parameter)->second));
}

std::size_t PolicyContext::bytes(std::string_view parameter, std::size_t otherwise, std::size_t multiple) const {
  const auto given = parameters.find(parameter);
  if (given == parameters.end()) return otherwise;
  std::size_t bytes = 0;
  try {
    bytes = parse_bytes(given->second);
  } catch (const ValueError&) {
    refuse(parameter, "a number of bytes, such as 20MiB");
  }
  if (bytes % multiple != 0) refuse(parameter, "a multiple of " + format_bytes(multiple));
  return bytes;
}

std::size_t PolicyContext::count(std::string_view parameter, std::size_t otherwise) const {
  const auto given = parameters.find(parameter);
  if (given == parameters.end()) return otherwise;
  const std::optional<std::size_t> count = number_in<std::size_t>(given->second);
  if (!count || *count == 0) refuse(parameter, "a number from 1");
  return *count;
}

double PolicyContext::fraction(std::string_view parameter, double otherwise) const {
  const auto given = parameters.find(parameter);
  if (given == parameters.end()) return otherwise;
  const std::optional<double> fraction = number_in<double>(given->second);
  if (!fraction || !(*fraction > 0 && *fraction < 1)) refuse(parameter, "above 0 and below 1");
  return *fraction;
}

bool PolicyContext::flag(std::string_view parameter, bool otherwise) const {
  const auto given = parameters.find(parameter);
  if (given == parameters.end()) return otherwise;
  if (given->second != "on" && given->second != "off") refuse(parameter, "on or off");
  return given->second == "on";
}

namespace {

template <class Things>
std::string names_of(const Things& things) {
  std::string names;
  for (const auto& thing : things) names += (names.empty() ? "" : ", ") + std::string(thing.name);
  return names.empty() ? "none" : names;
}

std::map<std::string, std::string, std::less<>> parse_parameters(const PolicyEntry& entry, std::string_view text) {
  std::map<std::string, std::string, std::less<>> given;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    const std::string name(item.substr(0, equals));
    const auto fail = [&](const std::string& kind, const std::string& reason) {
      throw ValueError("[policy] " + kind + " " + in_quotes(name) + " of " + std::string(entry.name) + reason);
    };
    if (std::ranges::find(entry.parameters, name, &PolicyParameter::name) == entry.parameters.end())
      fail("unknown parameter", "; known parameters: " + names_of(entry.parameters));
    if (equals == std::string_view::npos) fail("parameter", " has no value: write " + printable(name) + "=...");
    given.insert_or_assign(name, std::string(item.substr(equals + 1)));
  }
  return given;
}

const PolicyEntry& plain_policy(std::string_view name) {
  const auto entry = std::ranges::find(policies(), name, &PolicyEntry::name);
  if (entry != policies().end()) return *entry;
  throw ValueError("[policy] unknown policy " + in_quotes(name) + "; known policies: " + names_of(policies()));
}

}  // namespace

const PolicyEntry& policy_named(std::string_view text) {
  const std::size_t colon = text.find(':');
  const PolicyEntry& plain = plain_policy(text.substr(0, colon));
  if (colon == std::string_view::npos) return plain;
  static std::mutex mutex;
  static std::map<std::string, PolicyEntry, std::less<>> named;
  const std::lock_guard lock(mutex);
  if (const auto known = named.find(text); known != named.end()) return known->second;
  PolicyEntry entry = plain;
  entry.make = [name = plain.name, make = plain.make,
                given = parse_parameters(plain, text.substr(colon + 1))](PolicyContext context) {
    context.policy = name;
    context.parameters = given;
    return make(context);
  };
  // Reports invalid values now, not during a replay.
  static const LatencyTable unit = LatencyTable::named("unit");
  static const Workload nothing;
  entry.make({.capacity = std::size_t{1} << 30, .latency = &unit, .workload = &nothing});
  const auto [place, added] = named.emplace(std::string(text), std::move(entry));
  place->second.name = place->first;
  return place->second;
}

}  // namespace poolgrad
