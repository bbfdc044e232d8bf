#include "allocator/memory/calibration.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "allocator/error.h"

namespace poolgrad {

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The times of one call, at one size.
class Samples {
 public:
  template <typename Function>
  auto take(const Function& function) {
    struct Timer {
      std::vector<double>& nanoseconds;
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Timer() {
        nanoseconds.push_back(
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
      }
    } timer{nanoseconds_};
    return function();
  }
  double median() const { return poolgrad::median(nanoseconds_); }

 private:
  std::vector<double> nanoseconds_;
};

struct SizedCalls {
  Samples reserve, unreserve, create, release, map, set_access, unmap, malloc, free;
};

void require(bool given) {
  if (!given) throw OutOfMemoryError("[calibrate] the device has not enough memory left to measure with");
}

// One life of a handle and of a segment of `bytes`. The first is not timed: it warms up what the driver keeps.
SizedCalls measure(CudaDriver& driver, std::size_t bytes, int repetitions) {
  SizedCalls warm_up;
  SizedCalls timed;
  for (int i = 0; i <= repetitions; ++i) {
    SizedCalls& calls = i == 0 ? warm_up : timed;
    const auto address = calls.reserve.take([&] { return driver.address_reserve(bytes, driver.granularity()); });
    require(address != 0);
    const auto handle = calls.create.take([&] { return driver.create(bytes); });
    bool usable = false;
    if (handle) {
      if (calls.map.take([&] { return driver.map(address, bytes, *handle); })) {
        usable = calls.set_access.take([&] { return driver.set_access(address, bytes); });
        calls.unmap.take([&] { driver.unmap(address, bytes); });
      }
      calls.release.take([&] { driver.release(*handle); });
    }
    calls.unreserve.take([&] { driver.address_free(address, bytes); });
    require(usable);
    const auto segment = calls.malloc.take([&] { return driver.malloc(bytes); });
    require(segment != 0);
    calls.free.take([&] { driver.free(segment); });
  }
  return timed;
}

LatencyTable::Cost line_through(const Samples& small, const Samples& large, const CalibrationOptions& options) {
  constexpr double mib = 1048576.0;
  const double first = static_cast<double>(options.small_bytes) / mib;
  const double second = static_cast<double>(options.large_bytes) / mib;
  const double slope = (large.median() - small.median()) / (second - first);
  if (slope <= 0) return {.call = small.median()};  // the size does not matter
  // A negative cost per call would be noise; the line then goes through the origin.
  const double call = small.median() - slope * first;
  return call >= 0 ? LatencyTable::Cost{call, slope} : LatencyTable::Cost{0, large.median() / second};
}

}  // namespace

LatencyTable calibrate(CudaDriver& driver, const CalibrationOptions& options) {
  const bool sensible = options.repetitions > 0 && options.small_bytes > 0 && options.large_bytes > options.small_bytes;
  if (!sensible || driver.granularity() == 0 || options.small_bytes % driver.granularity() != 0 ||
      options.large_bytes % driver.granularity() != 0) {
    throw ValueError("[calibrate] the sizes must be two different multiples of the granularity of " +
                     std::to_string(driver.granularity()) + " bytes, got " + std::to_string(options.small_bytes) +
                     " and " + std::to_string(options.large_bytes));
  }
  const SizedCalls small = measure(driver, options.small_bytes, options.repetitions);
  const SizedCalls large = measure(driver, options.large_bytes, options.repetitions);
  LatencyTable table;
  table.source = "measured, medians of " + std::to_string(options.repetitions);
  const auto fit = [&](LatencyTable::Cost LatencyTable::*cost, Samples SizedCalls::*calls) {
    table.*cost = line_through(small.*calls, large.*calls, options);
  };
  fit(&LatencyTable::reserve, &SizedCalls::reserve);
  fit(&LatencyTable::unreserve, &SizedCalls::unreserve);
  fit(&LatencyTable::create, &SizedCalls::create);
  fit(&LatencyTable::release, &SizedCalls::release);
  fit(&LatencyTable::map, &SizedCalls::map);
  fit(&LatencyTable::set_access, &SizedCalls::set_access);
  fit(&LatencyTable::unmap, &SizedCalls::unmap);
  fit(&LatencyTable::malloc, &SizedCalls::malloc);
  fit(&LatencyTable::free, &SizedCalls::free);

  Samples record, query, wait, synchronize;
  const std::uint64_t event = driver.event_create();
  for (int i = 0; i < options.repetitions; ++i) {
    record.take([&] { driver.event_record(event, 0); });
    wait.take([&] { driver.stream_wait(0, event); });
    synchronize.take([&] { driver.event_synchronize(event); });
    query.take([&] { driver.event_query(event); });
  }
  driver.event_destroy(event);
  table.event_record = {.call = record.median()};
  table.event_query = {.call = query.median()};
  table.stream_wait = {.call = wait.median()};
  table.synchronize = {.call = synchronize.median()};
  return table;
}

}  // namespace poolgrad
