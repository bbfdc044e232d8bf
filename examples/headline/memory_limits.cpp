// The longest sequence in 8 GiB, by search on a simulated device of that size: with a pool and without.
#include <fmt/format.h>

#include <cstdlib>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "autograd/operators.h"
#include "examples/headline/attention_work.h"
#include "examples/headline/groups.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t capacity = std::size_t{8} << 30;
constexpr std::int64_t step = 512;

/// sim:index with 8 GiB, made with these options the first time.
Device simulated(int index, const char* options) {
  const char* given = std::getenv("POOLGRAD_ALLOCATOR");
  const std::string before = given ? given : "";
  setenv("POOLGRAD_ALLOCATOR", options, 1);
  configure_simulated_device(index, capacity);
  given ? setenv("POOLGRAD_ALLOCATOR", before.c_str(), 1) : unsetenv("POOLGRAD_ALLOCATOR");
  return {DeviceType::sim, static_cast<std::uint8_t>(index)};
}

bool fits(AttentionWork work, std::int64_t tokens, DType dtype, Device device) {
  work.tokens = tokens;
  CachingAllocator& pool = allocator_for(device);
  pool.trim();
  pool.reset_peaks();
  try {
    run_once(work, dtype, device);
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

Outcome longest(const AttentionWork& work, int index, const char* options, Bench& bench) {
  const Device device = simulated(index, options);
  std::int64_t good = step, bad = 16 * 1024 * step;
  while (bad - good > step) {
    const std::int64_t middle = (good + bad) / 2 / step * step;
    (fits(work, middle, bench.dtype, device) ? good : bad) = middle;
  }
  fits(work, good, bench.dtype, device);
  AttentionWork largest = work;
  largest.tokens = good;
  Outcome outcome;
  outcome.simulated = true;
  outcome.formula_bytes = formula_bytes(largest, bench.dtype);
  take_peaks(allocator_for(device), outcome);
  outcome.tokens = good;
  return outcome;
}

}  // namespace

Group memory_limits() {
  using attention::Pattern;
  Group group{"longest",
              "The longest sequence in 8 GiB (reports 000 and 002)",
              "A pool does not make memory: with and without it the same number of tokens fits (theirs: \"65,536 with "
              "the pool, "
              "24,576 without\"). What decides is what "
              "must live at once. Searched in steps of 512 tokens on a simulated device; no arithmetic is done.",
              {}};
  struct Search {
    const char *id, *label, *options;
    Work work;
    int device;
    Theirs theirs;
  };
  const Search searches[] = {{"longest-pool", "forward, with the pool", "", Work::forward, 1, {}},
                             {"longest-no-pool", "forward, without a pool", "mode:none", Work::forward, 2, {}},
                             {"longest-over-query", "forward, out over q", "", Work::forward_over_query, 1, {}},
                             {"longest-training", "forward and backward", "", Work::training, 1, {}}};
  for (const Search& search : searches) {
    const AttentionWork work{.work = search.work, .pattern = Pattern::dilated_sparse(128)};
    group.rows.push_back({search.id, search.label, 1, 0, search.theirs,
                          [=](Bench& bench) { return longest(work, search.device, search.options, bench); }});
  }
  return group;
}

}  // namespace poolgrad::examples
