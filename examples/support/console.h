// Where a program prints, and how its answers look.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/support/progress.h"

namespace poolgrad::examples {

using Json = nlohmann::ordered_json;

/// Exit codes; faults of the command line are 2 as well.
enum ExitCode : int {
  exit_good = 0,
  exit_error = 1,  // one sentence on stderr
  exit_usage = 2,
  exit_failed = 3  // the answer is no: out of memory, or a goal is missed
};

struct ConsoleOptions {
  bool json = false;   // answers as JSON, and nothing else
  bool quiet = false;  // no tables, no notes, no progress
};

class Console {
 public:
  Console(std::ostream& out, const ConsoleOptions& options, bool live)
      : out_(out), options_(options), progress_(out, live && !options.quiet && !options.json) {}

  /// For people: nothing under --json or --quiet.
  void print(const std::string& text) {
    if (!options_.json && !options_.quiet) progress_.line(text);
  }
  /// For programs: nothing without --json.
  void answer(const Json& json);
  bool json() const { return options_.json; }
  Progress& progress() { return progress_; }

 private:
  std::ostream& out_;
  ConsoleOptions options_;
  Progress progress_;
};

/// 3 significant digits: "951 ns", "12.3 us", "4.56 ms", "7.89 s".
std::string format_time(double nanoseconds);
/// "12.3 %"
std::string format_percent(double fraction);
/// With separators for people: 1234567 -> "1,234,567".
std::string format_integer(std::uint64_t value);

}  // namespace poolgrad::examples
