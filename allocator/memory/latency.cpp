#include "allocator/memory/latency.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "allocator/memory/cuda_memory.h"

namespace poolgrad {

namespace {

struct Key {
  const char* name;
  LatencyTable::Cost LatencyTable::*cost;
};

constexpr std::array keys{
    Key{"reserve", &LatencyTable::reserve},
    Key{"unreserve", &LatencyTable::unreserve},
    Key{"create", &LatencyTable::create},
    Key{"release", &LatencyTable::release},
    Key{"map", &LatencyTable::map},
    Key{"set_access", &LatencyTable::set_access},
    Key{"unmap", &LatencyTable::unmap},
    Key{"malloc", &LatencyTable::malloc},
    Key{"free", &LatencyTable::free},
    Key{"event_record", &LatencyTable::event_record},
    Key{"event_query", &LatencyTable::event_query},
    Key{"stream_wait", &LatencyTable::stream_wait},
    Key{"synchronize", &LatencyTable::synchronize},
};

constexpr double longest = 1e12;                                  // about 17 minutes for one call
constexpr std::uintmax_t largest_file = std::uintmax_t{1} << 20;  // bytes; a table is a few hundred

[[noreturn]] void fail(const std::string& path, std::size_t line, const std::string& reason) {
  throw FileError("[latency] " + printable_path(path) + ", line " + std::to_string(line) + ": " + reason);
}

std::string key_list() {
  std::string list;
  for (const Key& key : keys) list += (list.empty() ? "" : ", ") + std::string(key.name);
  return list;
}

double nanoseconds(const std::string& text, const std::string& path, std::size_t line) {
  const auto value = number_in<double>(text);
  if (!value || !(*value >= 0 && *value <= longest))
    fail(path, line, "expected nanoseconds from 0 to 1e12, got " + in_quotes(text));
  return *value;
}

/// `value` with `digits` decimals, right-aligned in `width` characters; independent of the locale.
std::string fixed(double value, int digits, std::size_t width) {
  std::array<char, 400> text{};  // the largest double has 309 digits
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  const std::string number(text.data(), end);
  return std::string(width - std::min(width, number.size()), ' ') + number;
}

std::string read_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  const auto refuse = [&](const std::string& reason) {
    throw FileError("[latency] " + printable_path(path) + ": " + reason);
  };
  if (error) refuse("cannot be read: " + error.message());
  if (bytes > largest_file) refuse("too large for a latency table");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) refuse("cannot be read");
  return text;
}

}  // namespace

LatencyTable LatencyTable::parse(std::string_view text, const std::string& path) {
  LatencyTable table;
  table.name = std::filesystem::path(path).stem().string();
  std::array<bool, keys.size()> seen{};
  std::size_t number = 0;
  for (std::string& line : split(text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    std::string key;
    if (!(words >> key) || key.front() == '#') continue;
    if (key == "source") {
      if (!table.source.empty()) fail(path, number, "duplicate source");
      std::getline(words >> std::ws, table.source);
      continue;
    }
    const auto* known = std::ranges::find_if(keys, [&](const Key& candidate) { return key == candidate.name; });
    if (known == keys.end()) {
      fail(path, number, "unknown call " + in_quotes(key) + "; known calls: source, " + key_list());
    }
    bool& already = seen[static_cast<std::size_t>(known - keys.begin())];
    if (already) fail(path, number, "duplicate line for " + key);
    already = true;
    std::string call, per_mib, more;
    if (!(words >> call >> per_mib) || (words >> more && more.front() != '#')) {
      fail(path, number, "expected '" + key + " <ns per call> <ns per MiB>', got " + in_quotes(line));
    }
    table.*(known->cost) = {.call = nanoseconds(call, path, number), .per_mib = nanoseconds(per_mib, path, number)};
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!seen[i]) fail(path, number, "the file ends without a line for " + std::string(keys[i].name));
  }
  return table;
}

LatencyTable LatencyTable::named(const std::string& name) {
  for (const LatencyText& known : latency_texts()) {
    if (name == known.name) return parse(known.text, name);
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(name, ignored)) {
    std::string list;
    for (const std::string& known : names()) list += (list.empty() ? "" : ", ") + known;
    throw ValueError("[latency] unknown latency table, neither a name nor a file: " + printable_path(name) +
                     "; known names: " + list);
  }
  return parse(read_file(name), name);
}

std::vector<std::string> LatencyTable::names() {
  std::vector<std::string> result;
  for (const LatencyText& known : latency_texts()) result.emplace_back(known.name);
  return result;
}

std::string LatencyTable::text() const {
  std::string result = source.empty() ? "" : "source       " + source + "\n";
  result += "# call               ns       ns per MiB\n";
  for (const Key& key : keys) {
    const Cost& cost = this->*(key.cost);
    std::string call = key.name;
    call.resize(std::max<std::size_t>(call.size(), 12), ' ');
    result += call + " " + fixed(cost.call, 1, 10) + " " + fixed(cost.per_mib, 3, 16) + "\n";
  }
  return result;
}

namespace {

// Measured times, by the call's member in the table.
class Samples {
 public:
  template <typename Function>
  auto take(LatencyTable::Cost LatencyTable::*call, const Function& function) {
    struct Timer {
      std::vector<double>& nanoseconds;
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Timer() {
        nanoseconds.push_back(
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
      }
    } timer{nanoseconds_[index_of(call)]};
    return function();
  }
  // The median; 0 for a call without samples.
  double median(LatencyTable::Cost LatencyTable::*call) const {
    std::vector<double> values = nanoseconds_[index_of(call)];
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
  }

 private:
  static std::size_t index_of(LatencyTable::Cost LatencyTable::*call) {
    return static_cast<std::size_t>(std::ranges::find(keys, call, &Key::cost) - keys.begin());
  }

  std::array<std::vector<double>, keys.size()> nanoseconds_;
};

void require(bool given) {
  if (!given) throw OutOfMemoryError("[calibrate] the device has too little free memory to measure");
}

// Times handles and segments of `bytes` from creation to release. The first repetition warms up the driver and is not
// timed.
Samples measure(CudaDriver& driver, std::size_t bytes, int repetitions) {
  using Table = LatencyTable;
  Samples warm_up;
  Samples timed;
  for (int i = 0; i <= repetitions; ++i) {
    Samples& calls = i == 0 ? warm_up : timed;
    const auto address =
        calls.take(&Table::reserve, [&] { return driver.address_reserve(bytes, driver.granularity()); });
    require(address != 0);
    const auto handle = calls.take(&Table::create, [&] { return driver.create(bytes); });
    bool usable = false;
    if (handle) {
      if (calls.take(&Table::map, [&] { return driver.map(address, bytes, *handle); })) {
        usable = calls.take(&Table::set_access, [&] { return driver.set_access(address, bytes); });
        calls.take(&Table::unmap, [&] { driver.unmap(address, bytes); });
      }
      calls.take(&Table::release, [&] { driver.release(*handle); });
    }
    calls.take(&Table::unreserve, [&] { driver.address_free(address, bytes); });
    require(usable);
    const auto segment = calls.take(&Table::malloc, [&] { return driver.malloc(bytes); });
    require(segment != 0);
    calls.take(&Table::free, [&] { driver.free(segment); });
  }
  return timed;
}

// The line through the medians at both sizes; the second is 0 for calls without a size.
LatencyTable::Cost line_through(double small, double large, const CalibrationOptions& options) {
  constexpr double mib = 1048576.0;
  const double first = static_cast<double>(options.small_bytes) / mib;
  const double second = static_cast<double>(options.large_bytes) / mib;
  const double slope = (large - small) / (second - first);
  if (slope <= 0) return {.call = small};  // size does not matter
  // A negative cost per call is noise: fit a line through the origin instead.
  const double call = small - slope * first;
  return call >= 0 ? LatencyTable::Cost{call, slope} : LatencyTable::Cost{0, large / second};
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
  Samples small = measure(driver, options.small_bytes, options.repetitions);
  const Samples large = measure(driver, options.large_bytes, options.repetitions);
  const std::uint64_t event = driver.event_create();
  for (int i = 0; i < options.repetitions; ++i) {
    small.take(&LatencyTable::event_record, [&] { driver.event_record(event, 0); });
    small.take(&LatencyTable::stream_wait, [&] { driver.stream_wait(0, event); });
    small.take(&LatencyTable::synchronize, [&] { driver.event_synchronize(event); });
    small.take(&LatencyTable::event_query, [&] { driver.event_query(event); });
  }
  driver.event_destroy(event);
  LatencyTable table;
  table.source = "measured, medians of " + std::to_string(options.repetitions);
  for (const Key& key : keys) {
    table.*key.cost = line_through(small.median(key.cost), large.median(key.cost), options);
  }
  return table;
}

}  // namespace poolgrad
