#include "examples/support/console.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

namespace poolgrad::examples {

void Console::answer(const Json& json) {
  if (options_.json) out_ << json.dump(2, ' ', false, Json::error_handler_t::replace) << std::endl;
}

std::string format_time(double nanoseconds) {
  struct Unit {
    double nanoseconds;
    const char* name;
  };
  for (const Unit unit : {Unit{1e9, "s"}, Unit{1e6, "ms"}, Unit{1e3, "us"}})
    if (nanoseconds >= 0.9995 * unit.nanoseconds)
      return fmt::format("{:#.3g} {}", nanoseconds / unit.nanoseconds, unit.name);
  return fmt::format("{:.0f} ns", nanoseconds);
}

std::string format_percent(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

std::string format_integer(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

}  // namespace poolgrad::examples
