// Where a program prints, how its answers look, and how it ends.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "allocator/base/number.h"
#include "nn/training/progress.h"

namespace poolgrad::examples {

using Json = nlohmann::ordered_json;  // of <nlohmann/json.hpp>, which who makes some includes
/// Indented, with a line end; bytes that are no UTF-8 are replaced.
std::string json_text(const Json& json);
using nn::bar, nn::format_count, nn::format_duration, nn::InterruptGuard, nn::Progress, nn::Stopwatch, nn::write_text;

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
/// As plural(), with separators: "1,234,567 events".
std::string counted(std::uint64_t count, const std::string& noun);
/// With the characters that XML and HTML reserve as entities.
std::string escaped(const std::string& text);

/// Tables of text with aligned columns, as wide as their widest cell. A header that begins with '<' aligns its column
/// to the left; others to the right. Cells may hold any UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> headers);

  /// As many cells as there are headers.
  void add(std::vector<std::string> row);
  /// A line across, below the last row.
  void rule();
  /// The lines, each ended, none with spaces at its end; `indent` spaces before each.
  std::string text(std::size_t indent = 2) const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a line across
};

/// The body of main(): `parse` reads the command line and returns an exit code, or -1, with which `run` prints to
/// standard output, with a live line where `live`. An exception ends the program with its sentence, if it has
/// any, on standard error, and so does output that is lost, as behind a closed pipe.
int run_program(const std::function<int()>& parse, const std::function<void(std::ostream& out, bool live)>& run);

/// The text of an error that ends a program, without control characters. The standard library's errors of memory become
/// a sentence.
std::string sentence_of(const std::exception& error);

/// A program's exit code: `code`, or exit_error, and a sentence, where standard output did not take all of the answer.
int code_of_output(int code);

}  // namespace poolgrad::examples
