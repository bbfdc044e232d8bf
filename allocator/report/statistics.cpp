#include "allocator/report/statistics.h"

namespace poolgrad {

namespace {

using Named = std::vector<std::pair<std::string, std::uint64_t>>;

void append(Named& names, const std::string& prefix, const Gauge& gauge) {
  names.emplace_back(prefix + ".current", gauge.current);
  names.emplace_back(prefix + ".peak", gauge.peak);
  names.emplace_back(prefix + ".allocated", gauge.allocated);
  names.emplace_back(prefix + ".freed", gauge.freed);
}

}  // namespace

std::vector<std::pair<std::string, std::uint64_t>> named_statistics(const Statistics& statistics) {
  Named names;
  append(names, "allocation.all", statistics.allocation);
  append(names, "allocated_bytes.all", statistics.allocated_bytes);
  append(names, "requested_bytes.all", statistics.requested_bytes);
  append(names, "reserved_bytes.all", statistics.reserved_bytes);
  append(names, "active_bytes.all", statistics.active_bytes);
  names.emplace_back("segment.all.current", statistics.segments);
  names.emplace_back("inactive_split.all.current", statistics.inactive_split);
  names.emplace_back("inactive_split_bytes.all.current", statistics.inactive_split_bytes);
  names.emplace_back("num_alloc_retries", statistics.num_alloc_retries);
  names.emplace_back("num_ooms", statistics.num_ooms);
  names.emplace_back("num_client_failures", statistics.num_client_failures);
  names.emplace_back("num_sync_all_streams", statistics.num_sync_all_streams);
  names.emplace_back("num_device_alloc", statistics.num_device_alloc);
  names.emplace_back("num_device_free", statistics.num_device_free);
  names.emplace_back("requests", statistics.requests);
  names.emplace_back("pool_hits", statistics.pool_hits);
  names.emplace_back("magazine_hits", statistics.magazine_hits);
  names.emplace_back("events_recorded", statistics.events_recorded);
  names.emplace_back("planned_hits", statistics.planned_hits);
  names.emplace_back("plan_divergences", statistics.plan_divergences);
  names.emplace_back("plans", statistics.plans);
  names.emplace_back("driver_calls", statistics.driver_calls);
  names.emplace_back("driver_nanoseconds", statistics.driver_nanoseconds);
  names.emplace_back("cached_bytes", statistics.cached_bytes());
  names.emplace_back("magazine_bytes", statistics.magazine_bytes);
  names.emplace_back("pending_bytes", statistics.pending_bytes);
  names.emplace_back("largest_free_bytes", statistics.largest_free_bytes);
  names.emplace_back("bookkeeping_bytes", statistics.bookkeeping_bytes);
  for (std::size_t i = 0; i < category_count; ++i) {
    const std::string category(to_string(static_cast<Category>(i)));
    append(names, "category_bytes." + category, statistics.category_bytes[i]);
    names.emplace_back("category_hits." + category, statistics.category_hits[i]);
    names.emplace_back("category_misses." + category, statistics.category_misses[i]);
  }
  for (const ReclaimStatistics& stage : statistics.stages) {
    names.emplace_back("stage." + stage.name + ".bytes", stage.bytes);
    names.emplace_back("stage." + stage.name + ".runs", stage.runs);
    names.emplace_back("stage." + stage.name + ".nanoseconds", stage.nanoseconds);
  }
  for (const StreamStatistics& stream : statistics.streams) {
    const std::string prefix = "stream." + std::to_string(stream.stream);
    names.emplace_back(prefix + ".live_bytes", stream.live_bytes);
    names.emplace_back(prefix + ".cached_bytes", stream.cached_bytes);
    names.emplace_back(prefix + ".pending_bytes", stream.pending_bytes);
  }
  return names;
}

}  // namespace poolgrad
