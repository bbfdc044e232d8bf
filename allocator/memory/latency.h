// A latency model of device calls, for the simulated device's virtual clock and for replays, and its calibration.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad {

class CudaDriver;

struct LatencyTable {
  /// Nanoseconds of one call: `call` + `per_mib` for each MiB.
  struct Cost {
    double call = 0;
    double per_mib = 0;
    double of(std::size_t bytes) const { return call + per_mib * (static_cast<double>(bytes) / 1048576.0); }
  };

  std::string name;
  std::string source;           // origin of the figures, one line
  Cost reserve, unreserve;      // cuMemAddressReserve, cuMemAddressFree
  Cost create, release;         // cuMemCreate, cuMemRelease; per handle
  Cost map, set_access, unmap;  // cuMemMap, cuMemSetAccess, cuMemUnmap; per handle
  Cost malloc, free;            // cudaMalloc, cudaFree
  Cost event_record, event_query, stream_wait, synchronize;

  /// A table's file has one line `key ns_per_call ns_per_MiB` for each of these members, in any order, and may have a
  /// line `source ...` and comments (#).
  ///
  /// `name` is "unit" (1000 ns for each call), "h200" (measured, compiled in), or the path of a table's file. Throws
  /// ValueError that lists the names, and FileError with the line for a malformed file.
  static LatencyTable named(const std::string& name);
  static LatencyTable parse(std::string_view text, const std::string& path);
  /// The built-in names.
  static std::vector<std::string> names();
  /// In the format that parse() reads, to a tenth of a nanosecond.
  std::string text() const;
};

// The built-in latency tables as text: allocator/memory/latency/*.txt.

struct LatencyText {
  std::string_view name;
  std::string_view text;
};

const std::vector<LatencyText>& latency_texts();

struct CalibrationOptions {
  int repetitions = 50;  // of each call and size, for the median
  /// The difference between these sizes gives the cost per MiB; multiples of the driver's granularity.
  std::size_t small_bytes = std::size_t{2} << 20;
  std::size_t large_bytes = std::size_t{64} << 20;
};

/// Needs an otherwise idle device. Uses at most 2 x large_bytes and releases all of it. Throws OutOfMemoryError if the
/// device has less.
LatencyTable calibrate(CudaDriver& driver, const CalibrationOptions& options = {});

}  // namespace poolgrad
