#include "nn/training/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"

namespace poolgrad::nn {

namespace {

volatile std::sig_atomic_t stop_requested = 0;
int guards = 0;

void request_stop(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

/// Handles signals that may repeat: SIGPIPE with every write, SIGUSR1 until the ranks end.
void request_stop_again(int) { stop_requested = 1; }

/// The signals that a guard handles, and their handlers before.
struct Caught {
  int signal;
  struct sigaction before;
};
Caught caught[] = {{SIGINT, {}}, {SIGTERM, {}}, {SIGUSR1, {}}, {SIGHUP, {}}, {SIGPIPE, {}}, {SIGXFSZ, {}}};

void handle_stops() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, request_stop);
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // under nohup
}

FileError cannot_write(const std::string& path, const std::string& operation) {
  const std::string reason = errno == ENOENT ? "its folder does not exist" : std::generic_category().message(errno);
  return FileError("[" + operation + "] cannot write " + printable_path(path) + ": " + reason);
}

}  // namespace

std::string format_duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

std::string format_milliseconds(double milliseconds) {
  return fmt::format("{:.{}f}", milliseconds, milliseconds < 1 ? 2 : milliseconds < 10 ? 1 : 0);
}

std::string format_count(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string sparkline(const std::vector<double>& values, std::size_t width) {
  static constexpr const char* levels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty()) return "";
  const std::size_t buckets = std::min(width, values.size());
  std::vector<double> means;
  for (std::size_t b = 0; b < buckets; ++b) {
    const std::size_t begin = b * values.size() / buckets, end = (b + 1) * values.size() / buckets;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double range = *high - *low;
  std::string text;
  for (const double mean : means)
    text += levels[range > 0 ? static_cast<std::size_t>(std::clamp((mean - *low) / range * 7.999, 0.0, 7.0)) : 0];
  return text;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string bar(double fraction, int width) {
  const int filled = std::clamp(static_cast<int>(fraction * width), 0, width);
  return fmt::format("[{}{}]", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(width - filled), '-'));
}

std::int64_t Stopwatch::now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Progress::line(const std::string& text) {
  clear();
  out_ << text << std::endl;
}

namespace {

/// Returns at most so many characters of UTF-8.
std::string_view first_characters(std::string_view text, std::size_t most) {
  std::size_t end = 0;
  for (std::size_t seen = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (begins && seen++ == most) break;
  }
  return text.substr(0, end);
}

/// Returns the width of the terminal; if standard output is not a terminal, no limit.
std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::string_view::npos;
}

}  // namespace

void Progress::status(const std::string& text) {
  if (!live_) return;
  // A wrapped line cannot be redrawn. Some terminals wrap after their last column.
  out_ << "\r\x1b[K" << first_characters(text, terminal_columns() - 1) << std::flush;
  drawn_ = true;
}

namespace {

/// Never destroyed: scopes of other threads may have registered with it and end later.
class ScopeWatch : public ScopeListener {
 public:
  void start(Progress& progress, std::string what, double patience) {
    progress_ = &progress, what_ = std::move(what), watch_ = Stopwatch(), due_ = patience;
    thread_ = std::this_thread::get_id();
    next_ = listen_to_scopes(this);
  }

  void stop() {
    listen_to_scopes(next_);
    thread_ = std::thread::id();
  }

  void begins(std::string_view name) noexcept override {
    if (ScopeListener* const next = next_) next->begins(name);
    if (std::this_thread::get_id() != thread_ || watch_.seconds() < due_) return;
    due_ = watch_.seconds() + 0.5;
    try {
      progress_->status(
          fmt::format("{}  {}  {}", what_, format_duration(watch_.seconds()), scope_name(current_tag().scope)));
    } catch (const std::exception&) {  // skips the line
    }
  }

  void ends() noexcept override {
    if (ScopeListener* const next = next_) next->ends();
  }

 private:
  Progress* progress_ = nullptr;
  std::string what_;
  Stopwatch watch_;
  double due_ = 0;
  std::atomic<std::thread::id> thread_;
  std::atomic<ScopeListener*> next_ = nullptr;
};

ScopeWatch& scope_watch() {
  static auto* const watch = new ScopeWatch;
  return *watch;
}

}  // namespace

ScopeStatus::ScopeStatus(Progress& progress, std::string what, double patience) {
  scope_watch().start(progress, std::move(what), patience);
}

ScopeStatus::~ScopeStatus() { scope_watch().stop(); }

bool Progress::is_terminal() {
  const char* const term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

void Progress::clear() {
  if (drawn_) out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

namespace {
/// Returns whether the path becomes a file that replaces an older one as a whole. Devices and FIFOs are written to.
bool is_replaced(std::filesystem::file_type kind) {
  return kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
}
}  // namespace

void write_text(const std::string& path, const std::string& text, const std::string& operation, std::ostream& out) {
  if (path == "-") {
    if (!(out << text << std::flush)) throw cannot_write("to standard output", operation);
    return;
  }
  std::error_code unknown;
  if (is_replaced(std::filesystem::status(path, unknown).type())) {
    AtomicFile whole(path);
    whole.write(text);
    whole.commit();
    return;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0)
    throw cannot_write(path, operation);
}

void check_writable(const std::string& path, const std::string& operation) {
  std::error_code unknown;
  const auto kind = std::filesystem::status(path, unknown).type();
  if (path.empty() || path == "-" || kind == std::filesystem::file_type::fifo)
    return;  // opening a fifo waits for its reader
  const std::string target = target_of(path);
  std::FILE* const file = std::fopen(target.c_str(), "ab");
  if (file == nullptr) throw cannot_write(path, operation);
  std::fclose(file);
  if (kind == std::filesystem::file_type::not_found) std::filesystem::remove(target, unknown);
  if (is_replaced(kind)) const AtomicFile attempt(path);
}

void check_replaceable(const std::string& path, const std::string& operation) {
  check_writable(path, operation);
  if (path.empty()) return;
  const AtomicFile attempt(path);
}

std::string no_room_for(const std::string& path, std::uint64_t bytes, bool is_replaced) {
  std::error_code unknown;
  const bool twice = is_replaced && !std::filesystem::exists(path, unknown);
  const std::filesystem::path whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(target_of(path)), unknown);
  const std::uintmax_t free = std::filesystem::space(whole.parent_path(), unknown).available;
  if (unknown || (twice ? 2 : 1) * bytes <= free) return "";
  return fmt::format("{} takes {}{}, and its disk has {} left", printable_path(path), format_bytes(bytes),
                     twice ? " (twice that while the next one replaces it)" : "", format_bytes(free));
}

InterruptGuard::InterruptGuard() {
  if (guards++ > 0) return;
  for (Caught& each : caught) sigaction(each.signal, nullptr, &each.before);
  for (const int signal : {SIGPIPE, SIGUSR1}) std::signal(signal, request_stop_again);
  std::signal(SIGXFSZ, SIG_IGN);  // then the write reports why it failed
  forget();
}

InterruptGuard::~InterruptGuard() {
  if (--guards > 0) return;
  for (const Caught& each : caught) sigaction(each.signal, &each.before, nullptr);
}

bool InterruptGuard::interrupted() { return stop_requested != 0; }

void InterruptGuard::forget() {
  stop_requested = 0;
  handle_stops();
}

}  // namespace poolgrad::nn
