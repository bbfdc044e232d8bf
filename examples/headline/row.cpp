#include "examples/headline/row.h"

#include <algorithm>

namespace poolgrad::examples {

void take_peaks(const CachingAllocator& pool, Outcome& outcome) {
  const Statistics statistics = pool.statistics();
  outcome.peak_bytes = static_cast<double>(statistics.allocated_bytes.peak);
  outcome.reserved_bytes = static_cast<double>(statistics.reserved_bytes.peak);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace poolgrad::examples
