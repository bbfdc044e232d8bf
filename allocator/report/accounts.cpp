#include "allocator/report/accounts.h"

#include <string>

namespace poolgrad {

void Accounts::ran(RungId rung, std::size_t bytes, std::uint64_t nanoseconds) {
  for (std::size_t i = rungs.size(); i < rung_count; ++i) {
    rungs.push_back({.name = std::string(to_string(static_cast<RungId>(i)))});
  }
  RungStatistics& of_rung = rungs[static_cast<std::size_t>(rung)];
  of_rung.bytes += bytes;
  of_rung.runs += 1;
  of_rung.nanoseconds += nanoseconds;
}

void Accounts::reset_peaks() {
  const auto reset = [](Gauge& gauge) { gauge.peak = gauge.current; };
  reset(allocation);
  reset(allocated_bytes);
  reset(requested_bytes);
  reset(reserved_bytes);
  reset(active_bytes);
  for (Gauge& gauge : category_bytes) reset(gauge);
}

void Accounts::restart() {
  static_cast<Statistics&>(*this) = {};
  tick = 0;
}

}  // namespace poolgrad
