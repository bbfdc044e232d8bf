#include "examples/support/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/memory/host_memory.h"

namespace poolgrad::examples {

namespace {

/// The number of UTF-8 characters.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void append_line(std::string& to, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  to += line + '\n';
}

}  // namespace

void Console::answer(const Json& json) {
  if (options_.json) out_ << json_text(json) << std::flush;
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

std::string counted(std::uint64_t count, const std::string& noun) {
  return format_integer(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? "\"\"" : std::string(1, c);
  return cell + "\"";
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  return result;
}

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    left_.push_back(header.starts_with('<'));
    if (left_.back()) header.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> row) {
  row.resize(headers_.size());
  rows_.push_back(std::move(row));
}

void Table::rule() { rows_.emplace_back(); }

std::string Table::text(std::size_t indent) const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < headers_.size(); ++c) {
    widths.push_back(width_of(headers_[c]));
    for (const auto& row : rows_)
      if (!row.empty()) widths.back() = std::max(widths.back(), width_of(row[c]));
  }
  std::string result;
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      line += (c > 0 ? "  " : "") + (left_[c] ? row[c] + padding : padding + row[c]);
    }
    append_line(result, line);
  };
  print(headers_);
  for (const auto& row : rows_) {
    if (!row.empty()) {
      print(row);
      continue;
    }
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < widths.size(); ++c) line += (c > 0 ? "  " : "") + std::string(widths[c], '-');
    append_line(result, line);
  }
  return result;
}

int run_program(const std::function<int()>& parse, const std::function<void(std::ostream& out, bool live)>& run) {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);  // failed writes report themselves
  try {
    const int code = parse();
    if (code < 0) run(std::cout, Progress::is_terminal());
    return code_of_output(std::max(code, 0));
  } catch (const std::exception& error) {
    if (*error.what() != '\0') std::cerr << sentence_of(error) << std::endl;
    return exit_error;
  }
}

std::string sentence_of(const std::exception& error) {
  const bool out_of_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
                             dynamic_cast<const std::length_error*>(&error) != nullptr;
  if (!out_of_memory) return printable_lines(error.what());
  return "the memory of this machine, " + format_bytes(HostMemory().info().total) + ", is too small for this command";
}

int code_of_output(int code) {
  if (std::cout.flush()) return code;
  std::cerr << "cannot write all results to standard output" << std::endl;
  return exit_error;
}

}  // namespace poolgrad::examples
