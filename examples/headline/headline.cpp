#include "examples/headline/headline.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/support/console.h"
#include "examples/support/files.h"
#include "examples/support/html.h"
#include "examples/support/options.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

/// The value of `key` in a file of "key : value" lines; "" if absent.
std::string field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_not_of(" \t:", key.size());
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

/// "<processor>, <memory>", or the GPU.
std::string machine_name(Device device) {
  if (device.is_cuda()) return engines_of(device).machine;
  const std::string processor = field("/proc/cpuinfo", "model name"), memory = field("/proc/meminfo", "MemTotal");
  return (processor.empty() ? "unknown processor" : processor) + ", " +
         (memory.empty() ? "unknown memory" : format_bytes(std::stoull(memory) * 1024));
}

std::size_t free_memory(Device device) {
  if (!device.is_cpu()) return allocator_for(device).memory().info().free;
  const std::string available = field("/proc/meminfo", "MemAvailable");
  return available.empty() ? std::size_t{4} << 30 : static_cast<std::size_t>(std::stoull(available)) * 1024 / 10 * 9;
}

bool wanted(const std::vector<std::string>& names, const Group& group, const Row& row) {
  return names.empty() || std::ranges::any_of(names, [&](const std::string& name) {
           return group.id.starts_with(name) || row.id.starts_with(name);
         });
}

/// The groups with only the selected rows.
std::vector<Group> selected(const HeadlineOptions& options) {
  std::vector<Group> result;
  for (Group& group : headline_groups()) {
    std::erase_if(group.rows, [&](const Row& row) { return !wanted(options.rows, group, row); });
    if (!group.rows.empty()) result.push_back(std::move(group));
  }
  if (result.empty())
    throw ValueError("[headline] --rows matches no row: " +
                     printable(fmt::format("{}", fmt::join(options.rows, ", "))));
  return result;
}

Bench make_bench(const HeadlineOptions& options, Progress& progress) {
  const auto positive = [](const char* name, double value) {
    if (!(value > 0)) throw ValueError(fmt::format("[headline] {} must be positive, but is {}", name, value));
    return value;
  };
  Bench bench;
  bench.device = parse_device(options.device, "headline", "no time passes");
  bench.dtype = of_option("--dtype", [&] { return parse_dtype(printable(options.dtype)); });
  if (!is_floating(bench.dtype))
    throw ValueError("[headline] --dtype must be floating, but is " + printable(options.dtype));
  bench.row_seconds = positive("--row-seconds", options.row_seconds);
  bench.stream_seconds = positive("--seconds", options.seconds);
  bench.seed = options.seed;
  bench.memory = options.memory.empty() ? free_memory(bench.device)
                                        : of_option("--memory", [&] { return parse_bytes(options.memory); });
  bench.progress = &progress;
  return bench;
}

struct Measured {
  const Row* row;
  Outcome outcome;
};

struct MeasuredGroup {
  const Group* group;
  std::vector<Measured> rows;
};

const std::string none = "-";
constexpr double eight_gib = 8.0 * (1 << 30);

std::string milliseconds(double value) {
  return value < 10     ? fmt::format("{:.2f}", value)
         : value < 1000 ? fmt::format("{:.0f}", value)
                        : format_integer(static_cast<std::uint64_t>(value));
}

std::string bytes(double value) { return format_bytes(static_cast<std::size_t>(value)); }

/// Wraps to lines of at most `width` characters.
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

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json row_json(const Measured& measured) {
  const auto& [row, outcome] = measured;
  return {{"id", row->id},
          {"what", row->label},
          {"batch", row->batch},
          {"tokens", row->tokens},
          {"original",
           {{"milliseconds", number(row->theirs.milliseconds)},
            {"peak_bytes", number(row->theirs.bytes)},
            {"out_of_memory", row->theirs.out_of_memory}}},
          {"milliseconds", number(outcome.milliseconds)},
          {"calls", outcome.calls},
          {"operations", outcome.operations},
          {"tokens_at_once", outcome.tokens ? outcome.tokens : row->tokens},
          {"peak_bytes", number(outcome.peak_bytes)},
          {"reserved_bytes", number(outcome.reserved_bytes)},
          {"formula_bytes", outcome.formula_bytes},
          {"worst_error", number(outcome.worst_error)},
          {"simulated", outcome.simulated},
          {"remark", outcome.remark}};
}

// Contents of the table and the page.

const std::vector<std::string> headline_columns{"<row",     "<what",   "tokens",    "batch",   "theirs ms",
                                                "ours ms",  "ratio",   "TFLOP/s",   "B/token", "theirs peak",
                                                "our peak", "tensors", "8 GiB hold"};

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

constexpr std::string_view headline_style = R"(
body { max-width: 92rem; } .behind { opacity: .8; } ul { font-size: .88rem; padding-left: 1.2rem; }
th:nth-child(2), td:nth-child(2) { text-align: left; }
)";

std::string table_html(const MeasuredGroup& group) {
  std::vector<std::string> head = headline_columns;
  for (std::string& column : head) column.erase(0, column.starts_with('<') ? 1 : 0);
  std::string rows, remarks;
  for (const Measured& measured : group.rows) {
    std::vector<std::string> cells = headline_cells(measured);
    for (std::string& cell : cells) cell = escaped(cell);
    rows += html_row(cells);
    if (!measured.outcome.remark.empty())
      remarks += "<li><b>" + escaped(measured.row->id) + "</b>: " + escaped(measured.outcome.remark) + "</li>\n";
  }
  return html_table(head, rows) + (remarks.empty() ? "" : "<ul>" + remarks + "</ul>\n");
}

/// Title, background, table, remarks.
std::string group_text(const MeasuredGroup& group) {
  Table table(headline_columns);
  std::string remarks;
  for (const Measured& measured : group.rows) {
    table.add(headline_cells(measured));
    if (!measured.outcome.remark.empty()) remarks += wrapped(measured.row->id + ": " + measured.outcome.remark, 2);
  }
  return group.group->title + "\n" + wrapped(group.group->behind, 2) + "\n" + table.text() +
         (remarks.empty() ? "" : "\n" + remarks);
}

Json headline_json(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine) {
  Json all = Json::array();
  for (const MeasuredGroup& group : groups) {
    Json rows = Json::array();
    for (const Measured& measured : group.rows) rows.push_back(row_json(measured));
    all.push_back(
        {{"id", group.group->id}, {"title", group.group->title}, {"behind", group.group->behind}, {"rows", rows}});
  }
  return {{"machine", machine},
          {"device", to_string(bench.device)},
          {"dtype", std::string(to_string(bench.dtype))},
          {"threads", kernels::num_threads()},
          {"seed", bench.seed},
          {"groups", all}};
}

std::string headline_html(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine) {
  std::string html = fmt::format(
      "<h1>Headline tables</h1>\n<p>{}, {}, {}, {}. \"theirs\" is the report's figure on a GTX 1080; the ratio is "
      "theirs over ours; the line under each title explains both runs.</p>\n",
      escaped(machine), plural(kernels::num_threads(), "thread"), to_string(bench.device), to_string(bench.dtype));
  for (const MeasuredGroup& group : groups)
    html += "<h2>" + escaped(group.group->title) + "</h2>\n<p class=\"behind\">" + escaped(group.group->behind) +
            "</p>\n" + table_html(group);
  return html_page("poolgrad: headline tables", headline_style, html);
}

}  // namespace

int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& o) {
  CLI::App app("Runs the tables of the original reports with exact attention, and prints both figures side by side.",
               "./run headline");
  app.option_defaults()->always_capture_default();
  app.add_option("--rows", o.rows, "Rows or groups to run, by prefixes of their names (default: all)")->delimiter(',');
  app.add_flag("--list", o.list, "List the rows and exit");
  app.add_option("--device", o.device, computing_device_help);
  app.add_option("--dtype", o.dtype, "Storage of the tensors: f16, bf16 or f32");
  app.add_option("--row-seconds", o.row_seconds, "Skip rows that would take longer than this");
  app.add_option("--seconds", o.seconds, "Time for each row that streams a billion tokens");
  app.add_option("--memory", o.memory, "Memory limit of the rows, such as 8GiB (default: 9/10 of the free memory)");
  app.add_option("--seed", o.seed, "Seed of the inputs");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  app.add_option("--html", o.html, "Page to write");
  app.add_flag("--quiet", o.quiet, "Print no tables");
  return parse_command_line(app, argc, argv);
}

void run_headline(const HeadlineOptions& options, std::ostream& out, bool live) {
  const std::vector<Group> groups = selected(options);
  const bool tables = !options.quiet && options.json != "-";
  if (options.list) {
    for (const Group& group : groups) {
      out << group.id << ": " << group.title << "\n";
      for (const Row& row : group.rows) out << "  " << row.id << ": " << row.label << "\n";
    }
    return;
  }
  check_files("headline", {{"--json", options.json, true}, {"--html", options.html, options.quiet}});
  for (const std::string& path : {options.json, options.html})
    if (path != "-") nn::check_replaceable(path, "headline");
  const InterruptGuard interrupt;
  Progress progress(out, live && tables);
  Bench bench = make_bench(options, progress);
  const std::string machine = machine_name(bench.device);
  if (tables)
    progress.line(machine + "; rows may use " + format_bytes(bench.memory) +
                  ". Theirs ran on a GTX 1080; ratio is theirs over ours.\n");

  std::size_t count = 0, total = 0;
  for (const Group& group : groups) total += group.rows.size();
  std::vector<MeasuredGroup> measured;
  for (const Group& group : groups) {
    measured.push_back({&group, {}});
    for (const Row& row : group.rows) {
      if (InterruptGuard::interrupted()) break;
      progress.status(fmt::format("{} row {} of {}: {}", bar(static_cast<double>(count) / static_cast<double>(total)),
                                  count + 1, total, row.id));
      measured.back().rows.push_back({&row, row.run(bench)});
      ++count;
    }
    if (tables) progress.line(group_text(measured.back()));
    if (InterruptGuard::interrupted()) break;
  }
  if (!options.json.empty())
    write_text(options.json, json_text(headline_json(measured, bench, machine)), "headline", out);
  if (!options.html.empty()) write_text(options.html, headline_html(measured, bench, machine), "headline", out);
}

}  // namespace poolgrad::examples
