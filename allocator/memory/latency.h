// What each call to a device costs, in time: for the simulated device's virtual clock and for replays; and how that is
// measured.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad {

class CudaDriver;

struct LatencyTable {
  /// Nanoseconds of one call: `call` + `per_mib` for each MiB that it is about.
  struct Cost {
    double call = 0;
    double per_mib = 0;
    double of(std::size_t bytes) const { return call + per_mib * (static_cast<double>(bytes) / 1048576.0); }
  };

  std::string name;
  std::string source;           // where the figures are from, one line
  Cost reserve, unreserve;      // cuMemAddressReserve, cuMemAddressFree
  Cost create, release;         // cuMemCreate, cuMemRelease; per handle
  Cost map, set_access, unmap;  // cuMemMap, cuMemSetAccess, cuMemUnmap; per handle
  Cost malloc, free;            // cudaMalloc, cudaFree
  Cost event_record, event_query, stream_wait, synchronize;

  /// A table's file has one line `key ns_per_call ns_per_MiB` for each of these members, in any order, and may have a
  /// line `source ...` and comments (#).
  ///
  /// "unit" (1000 ns for each call) or "h200", from the tables that were compiled in; or the path of a table's file.
  /// Throws ValueError that lists the names, and FileError with the line for a malformed file.
  static LatencyTable named(const std::string& name);
  static LatencyTable parse(std::string_view text, const std::string& path);
  /// The names that named() knows.
  static std::vector<std::string> names();
  /// As a file that parse() reads, to a tenth of a nanosecond.
  std::string text() const;
};

// The latency tables that were compiled in, as text: allocator/memory/latency/*.txt.

struct LatencyText {
  std::string_view name;
  std::string_view text;
};

const std::vector<LatencyText>& latency_texts();

struct CalibrationOptions {
  int repetitions = 50;  // of each call and size; medians are taken
  /// The sizes whose difference gives the cost of each MiB; multiples of the driver's granularity.
  std::size_t small_bytes = std::size_t{2} << 20;
  std::size_t large_bytes = std::size_t{64} << 20;
};

/// The device must be idle but for this. Uses 2 x large_bytes at most and gives all of it back. Throws OutOfMemoryError
/// if the device does not have that.
LatencyTable calibrate(CudaDriver& driver, const CalibrationOptions& options = {});

}  // namespace poolgrad
