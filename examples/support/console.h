// The output, number formats and exit codes of programs.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "allocator/base/number.h"
#include "nn/training/metrics.h"
#include "nn/training/progress.h"

namespace poolgrad::examples {

using Json = nlohmann::ordered_json;  // of <nlohmann/json.hpp>; include that to create values
using nn::bar, nn::format_count, nn::format_duration, nn::InterruptGuard, nn::json_text, nn::Progress, nn::Stopwatch,
    nn::write_text;

/// Exit codes; command line errors are also 2.
enum ExitCode : int {
  exit_good = 0,
  exit_error = 1,  // one sentence on stderr
  exit_usage = 2,
  exit_failed = 3  // the answer is no: out of memory, or a goal is missed
};

struct ConsoleOptions {
  bool json = false;   // prints only JSON results
  bool quiet = false;  // no tables, no notes, no progress
};

class Console {
 public:
  Console(std::ostream& out, const ConsoleOptions& options, bool live)
      : out_(out), options_(options), progress_(out, live && !options.quiet && !options.json) {}

  /// For people: prints nothing under --json or --quiet.
  void print(const std::string& text) {
    if (!options_.json && !options_.quiet) progress_.line(text);
  }
  /// For programs: prints nothing without --json.
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
/// Replaces the characters reserved in XML and HTML by entities.
std::string escaped(const std::string& text);
/// A cell of a CSV file: in quotes if it has a comma, a quote or a line end (RFC 4180).
std::string csv_cell(const std::string& text);

/// Tables of text with aligned columns, as wide as their widest cell. A header that begins with '<' aligns its column
/// to the left; others to the right. Cells may hold any UTF-8.
class Table {
 public:
  explicit Table(std::vector<std::string> headers);

  /// Takes as many cells as there are headers.
  void add(std::vector<std::string> row);
  /// Adds a horizontal line below the last row.
  void rule();
  const std::vector<std::string>& headers() const { return headers_; }
  const std::vector<bool>& left() const { return left_; }
  /// An empty row is a horizontal line.
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }
  /// The lines, each with a line end and without trailing spaces; `indent` spaces before each.
  std::string text(std::size_t indent = 2) const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

/// The body of main(). `parse` reads the command line and returns an exit code, or -1 to call `run`. `run` prints to
/// standard output, with a live line if `live`. An exception ends the program with its message, if any, on standard
/// error. So does lost output, as on a closed pipe.
int run_program(const std::function<int()>& parse, const std::function<void(std::ostream& out, bool live)>& run);

/// The message of an error that ends a program, without control characters. Memory errors of the standard library
/// become a sentence.
std::string sentence_of(const std::exception& error);

/// A program's exit code: `code`, or exit_error with a message if standard output lost a part of the results.
int code_of_output(int code);

}  // namespace poolgrad::examples
