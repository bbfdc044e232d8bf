// Shows a run on a terminal, in a log and in files, and stops it.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace poolgrad::nn {

/// "1:02:03", "2:31", "0:07".
std::string format_duration(double seconds);
/// "153", "5.3", "0.42": the time of a step, with enough digits to compare steps.
std::string format_milliseconds(double milliseconds);
/// 33312 -> "33.3k".
std::string format_count(double value);
/// One character per bucket of values, low to high: "█▆▄▃▂▁".
std::string sparkline(const std::vector<double>& values, std::size_t width = 60);
/// "[######------]" for a fraction in [0, 1].
std::string bar(double fraction, int width = 24);
/// Returns the first sentence of an error, without the report after it.
std::string first_line(const std::string& text);

/// Wall-clock time since construction.
class Stopwatch {
 public:
  Stopwatch() : start_(now()) {}
  double seconds() const { return 1e-9 * static_cast<double>(now() - start_); }
  double milliseconds() const { return 1e3 * seconds(); }

 private:
  static std::int64_t now();  // nanoseconds of a steady clock

  std::int64_t start_;
};

/// Prints lines, and on a terminal a live line below them that is redrawn in place.
class Progress {
 public:
  /// `live` must be false unless `out` is a terminal: see is_terminal().
  Progress(std::ostream& out, bool live) : out_(out), live_(live) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void line(const std::string& text);
  /// Replaces the live line by at most one line of the terminal; without a live line, does nothing.
  void status(const std::string& text);

  static bool is_terminal();

 private:
  void clear();

  std::ostream& out_;
  bool live_;
  bool drawn_ = false;
};

/// While alive, each named scope that its thread enters redraws the live line: "step 2/2  0:42
/// model.block3.feed_forward", in the backward pass with the operator. It starts after `patience` seconds and redraws
/// at most twice a second, so that a long step shows its progress. Only one may exist at a time.
class ScopeStatus {
 public:
  ScopeStatus(Progress& progress, std::string what, double patience = 2);
  ~ScopeStatus();
  ScopeStatus(const ScopeStatus&) = delete;
  ScopeStatus& operator=(const ScopeStatus&) = delete;
};

/// Writes the file whole; "-" is `out`. Throws FileError, "[operation] cannot write path: why".
void write_text(const std::string& path, const std::string& text, const std::string& operation, std::ostream& out);

/// Call it before the work, to learn whether the result can be written. Creates no file and leaves an existing one as
/// it is. Accepts "" (no file) and "-". Throws the FileError of write_text().
void check_writable(const std::string& path, const std::string& operation);

/// The same for an AtomicFile: an existing path must also be a regular file.
void check_replaceable(const std::string& path, const std::string& operation);

/// Returns a note if the disk of `path` has no room for a file of so many bytes; "" if it has, or if that is unknown.
/// With `is_replaced`, later files replace the first: old and new file need room at the same time.
std::string no_room_for(const std::string& path, std::uint64_t bytes, bool is_replaced = false);

/// Turns Ctrl-C into a request to stop cleanly. While a guard is alive, the first SIGINT, SIGTERM or SIGHUP (a closed
/// terminal, unless SIGHUP is ignored) sets a flag, and a second one ends the program. SIGUSR1 (which mpirun sends to
/// its ranks) and SIGPIPE (the reader of the output is gone) set the flag each time. SIGXFSZ (a file beyond its size
/// limit) does nothing: the write fails and reports the reason. The destructor restores the program's handlers. A
/// nested guard shares the flag, so that a stop of the inner work also stops the outer work.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  /// Clears the flag.
  static void forget();
};

}  // namespace poolgrad::nn
