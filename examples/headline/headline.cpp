#include "examples/headline/headline.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <ostream>

#include "allocator/base/atomic_file.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

/// The value behind `key` in a file of "key : value" lines; "" where there is none.
std::string field(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_not_of(" \t:", key.size());
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

/// "<processor>, <memory>".
std::string machine_name() {
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

/// The groups with only the rows that are wanted.
std::vector<Group> selected(const HeadlineOptions& options) {
  std::vector<Group> result;
  for (Group& group : headline_groups()) {
    std::erase_if(group.rows, [&](const Row& row) { return !wanted(options.rows, group, row); });
    if (!group.rows.empty()) result.push_back(std::move(group));
  }
  if (result.empty())
    throw ValueError("[headline] --rows names no row: " + fmt::format("{}", fmt::join(options.rows, ", ")));
  return result;
}

Bench make_bench(const HeadlineOptions& options, Progress& progress) {
  const auto positive = [](const char* name, double value) {
    if (!(value > 0)) throw ValueError(fmt::format("[headline] {} must be positive, but is {}", name, value));
    return value;
  };
  Bench bench;
  bench.device = Device::parse(options.device);
  if (bench.device.is_sim()) throw ValueError("[headline] --device must be cpu or cuda:N: on sim no time passes");
  bench.dtype = parse_dtype(options.dtype);
  if (!is_floating(bench.dtype)) throw ValueError("[headline] --dtype must be floating, but is " + options.dtype);
  bench.row_seconds = positive("--row-seconds", options.row_seconds);
  bench.stream_seconds = positive("--seconds", options.seconds);
  bench.seed = options.seed;
  bench.memory = options.memory.empty() ? free_memory(bench.device) : parse_bytes(options.memory);
  bench.progress = &progress;
  return bench;
}

void write(const std::string& path, const std::string& text, std::ostream& out) {
  if (path == "-")
    out << text << std::flush;
  else
    write_file_atomically(path, text);
}

}  // namespace

int parse_headline_options(int argc, const char* const* argv, HeadlineOptions& o) {
  CLI::App app("Runs the rows of the original reports' tables with exact mathematics, and prints their figures beside.",
               "headline");
  app.option_defaults()->always_capture_default();
  app.add_option("--rows", o.rows, "Rows or groups to run, by the beginning of their names (default: all)")
      ->delimiter(',');
  app.add_flag("--list", o.list, "Name the rows and stop");
  app.add_option("--device", o.device, "cpu or cuda:N");
  app.add_option("--dtype", o.dtype, "Storage of the tensors: f16, bf16 or f32");
  app.add_option("--row-seconds", o.row_seconds, "Leave out rows that would take longer than this");
  app.add_option("--seconds", o.seconds, "Time for each row that streams a billion tokens");
  app.add_option("--memory", o.memory, "Bytes that rows may use, such as 8GiB (default: 9/10 of what is free)");
  app.add_option("--seed", o.seed, "Decides the inputs");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  app.add_option("--html", o.html, "Page to write");
  app.add_flag("--quiet", o.quiet, "Print no tables");
  const int code = parse_command_line(app, argc, argv);
  return code > 0 ? exit_usage : code;
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
  const InterruptGuard interrupt;
  Progress progress(out, live && tables);
  Bench bench = make_bench(options, progress);
  const std::string machine = machine_name();
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
  if (!options.json.empty()) write(options.json, headline_json(measured, bench, machine).dump(2) + "\n", out);
  if (!options.html.empty()) write(options.html, headline_html(measured, bench, machine), out);
}

}  // namespace poolgrad::examples
