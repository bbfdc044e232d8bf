// How a run is seen, on a terminal, in a log and in files, and how it is stopped.
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
/// "153", "5.3", "0.42": of a step, with the digits that tell it from another.
std::string format_milliseconds(double milliseconds);
/// 33312 -> "33.3k".
std::string format_count(double value);
/// One character per bucket of values, low to high: "█▆▄▃▂▁".
std::string sparkline(const std::vector<double>& values, std::size_t width = 60);
/// "[######------]" for a fraction in [0, 1].
std::string bar(double fraction, int width = 24);
/// Of an error: the sentence, without the report behind it.
std::string first_line(const std::string& text);

/// Wall-clock time since it was made.
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
  /// `live` only where `out` is a terminal: see is_terminal().
  Progress(std::ostream& out, bool live) : out_(out), live_(live) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void line(const std::string& text);
  /// Replaces the live line, by no more than fits on one of the terminal; nothing where there is none.
  void status(const std::string& text);

  static bool is_terminal();

 private:
  void clear();

  std::ostream& out_;
  bool live_;
  bool drawn_ = false;
};

/// While it lives, the named scopes that its thread enters redraw the live line, twice a second at most, once
/// `patience` seconds have gone: "step 2/2  0:42  model.block3.feed_forward", in the backward pass the operator. So a
/// step of minutes shows where it is. One at a time.
class ScopeStatus {
 public:
  ScopeStatus(Progress& progress, std::string what, double patience = 2);
  ~ScopeStatus();
  ScopeStatus(const ScopeStatus&) = delete;
  ScopeStatus& operator=(const ScopeStatus&) = delete;
};

/// Writes the file whole; "-" is `out`. Throws FileError, "[operation] cannot write path: why".
void write_text(const std::string& path, const std::string& text, const std::string& operation, std::ostream& out);

/// Before the work whose result is to go there. Leaves no file behind and a file that is there as it is. An empty path
/// is none, and "-" is there always. Throws FileError as write_text().
void check_writable(const std::string& path, const std::string& operation);

/// The same where an AtomicFile is to be: besides, what is there must be a regular file.
void check_replaceable(const std::string& path, const std::string& operation);

/// Says that the disk of `path` has no room for a file of so many bytes; "" where it has room, or that is unknown. With
/// `is_replaced` later files replace the first, and each is beside the one before it until it is whole.
std::string no_room_for(const std::string& path, std::uint64_t bytes, bool is_replaced = false);

/// Ctrl-C as a request to stop cleanly. While a guard is alive, the first SIGINT, SIGTERM or SIGHUP (a closed terminal,
/// unless SIGHUP is ignored) sets a flag, and a second one ends the program. SIGUSR1 (which mpirun passes on to its
/// ranks) and SIGPIPE (output that has lost its reader) set the flag however often they come. SIGXFSZ (a file beyond
/// the limit of its size) does nothing: the write fails with the reason. The program's own handlers are in force again
/// afterwards. A guard within another shares its flag, so that a stop of the inner work stops the outer work too.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool interrupted();
  /// What was asked until now counts no more.
  static void forget();
};

}  // namespace poolgrad::nn
