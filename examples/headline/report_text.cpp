#include <fmt/format.h>

#include "allocator/caching_allocator.h"
#include "examples/headline/report.h"
#include "examples/support/table.h"

namespace poolgrad::examples {

namespace {

const std::string none = "-";
constexpr double eight_gib = 8.0 * (1 << 30);

std::string milliseconds(double value) {
  return value < 10     ? fmt::format("{:.2f}", value)
         : value < 1000 ? fmt::format("{:.0f}", value)
                        : format_integer(static_cast<std::uint64_t>(value));
}

std::string bytes(double value) { return format_bytes(static_cast<std::size_t>(value)); }

/// Lines of at most `width` characters.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width = 110) {
  std::string result, line;
  std::size_t at = 0;
  const auto flush = [&] {
    if (!line.empty()) result += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  flush();
  return result;
}

}  // namespace

const std::vector<std::string>& headline_columns() {
  static const std::vector<std::string> columns{"<row",     "<what",   "tokens",    "batch",   "theirs ms",
                                                "ours ms",  "ratio",   "TFLOP/s",   "B/token", "theirs peak",
                                                "our peak", "tensors", "8 GiB hold"};
  return columns;
}

std::vector<std::string> headline_cells(const Measured& measured) {
  const auto& [row, outcome] = measured;
  const auto& theirs = row->theirs;
  const std::int64_t at_once = outcome.tokens ? outcome.tokens : row->tokens;
  const auto tokens = static_cast<double>(row->batch * at_once);
  const auto ours = outcome.milliseconds;
  return {row->id,
          row->label,
          at_once ? format_integer(static_cast<std::uint64_t>(row->tokens ? row->tokens : at_once)) : none,
          row->batch ? std::to_string(row->batch) : none,
          theirs.out_of_memory  ? "out of memory"
          : theirs.milliseconds ? milliseconds(*theirs.milliseconds)
                                : none,
          ours ? milliseconds(*ours) : none,
          ours && theirs.milliseconds ? fmt::format("{:.3g}x", *theirs.milliseconds / *ours) : none,
          ours && outcome.operations > 0 ? fmt::format("{:.3f}", 1e-9 * outcome.operations / *ours) : none,
          outcome.peak_bytes && tokens > 0 ? fmt::format("{:.0f}", *outcome.peak_bytes / tokens) : none,
          theirs.bytes ? bytes(*theirs.bytes) : none,
          outcome.peak_bytes ? bytes(*outcome.peak_bytes) + (outcome.simulated ? " (sim)" : "") : none,
          outcome.formula_bytes > 0 ? bytes(outcome.formula_bytes) : none,
          outcome.formula_bytes > 0 && tokens > 0
              ? format_integer(static_cast<std::uint64_t>(eight_gib / outcome.formula_bytes * tokens))
              : none};
}

std::string group_text(const MeasuredGroup& group) {
  Table table(headline_columns());
  std::string remarks;
  for (const Measured& measured : group.rows) {
    table.add(headline_cells(measured));
    if (!measured.outcome.remark.empty()) remarks += wrapped(measured.row->id + ": " + measured.outcome.remark, 2);
  }
  return group.group->title + "\n" + wrapped(group.group->behind, 2) + "\n" + table.text() +
         (remarks.empty() ? "" : "\n" + remarks);
}

}  // namespace poolgrad::examples
