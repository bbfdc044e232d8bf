// The lab: its command line, its inputs, and the commands on one trace or workload: list, export, replay, report.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <vector>

#include "allocator/base/atomic_file.h"
#include "allocator/base/printable.h"
#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/replay/policy.h"
#include "allocator/lab/zoo/zoo.h"
#include "allocator/memory/latency.h"
#include "examples/lab/comparison.h"
#include "examples/lab/lab.h"
#include "examples/lab/page.h"
#include "examples/support/files.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

std::string policy_text() {
  Table table({"<policy", "<", "<description"});
  for (const PolicyEntry& policy : policies()) {
    table.add({std::string(policy.name), policy.online ? "" : "knows the future", std::string(policy.description)});
    for (const PolicyParameter& parameter : policy.parameters)
      table.add({"", "", fmt::format("  :{}= {}", parameter.name, parameter.description)});
  }
  return table.text();
}

int list(Console& console) {
  Json answer{{"policies", Json::array()}, {"workloads", Json::array()}, {"recordings", Json::array()}};
  for (const PolicyEntry& policy : policies()) {
    Json parameters = Json::object();
    for (const PolicyParameter& parameter : policy.parameters)
      parameters[std::string(parameter.name)] = parameter.description;
    answer["policies"].push_back({{"name", policy.name},
                                  {"online", policy.online},
                                  {"description", policy.description},
                                  {"parameters", parameters}});
  }
  Table zoo_table({"<workload", "<description"});
  for (const ZooEntry& entry : trace_zoo()) {
    zoo_table.add({"zoo:" + std::string(entry.name), std::string(entry.description)});
    answer["workloads"].push_back({{"name", entry.name}, {"description", entry.description}});
  }
  std::string recorded;
  for (const std::string& path : recordings()) {
    recorded += "  " + path + "\n";
    answer["recordings"].push_back(path);
  }
  std::string latencies;
  for (const std::string& name : LatencyTable::names()) latencies += " " + name;
  answer["latency_tables"] = LatencyTable::names();
  console.print(policy_text() + "\n" + zoo_table.text() + (recorded.empty() ? "" : "\n  recordings\n" + recorded) +
                "\n  latency tables:" + latencies);
  console.answer(answer);
  return exit_good;
}

const std::map<std::string, TraceFormat> formats = {{"pgt", TraceFormat::pgt},
                                                    {"pytorch", TraceFormat::pytorch_pickle},
                                                    {"pytorch-json", TraceFormat::pytorch_json},
                                                    {"chrome", TraceFormat::chrome},
                                                    {"rmm-csv", TraceFormat::csv}};

struct ExportOptions {
  std::string source;
  std::string format = "pytorch";
  std::string output;
  TraceWindow window;
  std::string min_size;
  Selection selection;
};

int export_trace(const ExportOptions& options, Console& console) {
  check_output("export", options.output, {options.source});
  TraceWindow window = options.window;
  if (!options.min_size.empty())
    window.min_size = of_option("--min-size", [&] { return parse_bytes(options.min_size); });
  const Trace trace = read_trace(options.source, options.selection);
  const std::string warning = save_trace(options.output, trace, formats.at(options.format), window);
  const auto bytes = static_cast<std::size_t>(std::filesystem::file_size(options.output));
  if (!warning.empty()) console.print("warning   " + warning);
  console.print(fmt::format("wrote     {}, {}", options.output, format_bytes(bytes)));
  console.answer({{"output", options.output}, {"format", options.format}, {"bytes", bytes}, {"warning", warning}});
  return exit_good;
}

struct ReplayCommandOptions {
  std::string source;
  std::string policy = "poolgrad";
  std::string capacity;
  std::string latency = "h200";
  bool smallest = false;
  Selection selection;
};

std::string result_text(const Workload& workload, const ReplayResult& r, bool limited, bool sized,
                        std::optional<std::size_t> smallest) {
  std::string text =
      fmt::format("workload  {}: {}\n          {}, lower bound {}\n", workload.name, workload.description,
                  counted(workload.operations.size(), "operation"), format_bytes(r.lower_bound));
  text += fmt::format("policy    {}{}\n", r.policy,
                      limited || r.out_of_memory ? " in " + format_bytes(r.capacity) : " without a limit");
  text += fmt::format("memory    peak {} requested, {} active, {} reserved: utilisation {}\n",
                      format_bytes(r.peak_requested), format_bytes(r.peak_active), format_bytes(r.peak_reserved),
                      format_percent(r.utilisation()));
  text += fmt::format("device    {}, {}, {}, {}, {}: {} of device time\n",
                      counted(r.counters.allocations, "allocation"), counted(r.counters.frees, "free"),
                      counted(r.counters.events, "event"), counted(r.counters.waits, "wait"),
                      counted(r.counters.synchronizations, "synchronisation"), format_time(r.modelled_ns));
  if (sized && !smallest) text += "smallest  capacity: none suffices\n";
  if (smallest)
    text += fmt::format("smallest  capacity {}, {:.3f} x the lower bound\n", format_bytes(*smallest),
                        static_cast<double>(*smallest) / static_cast<double>(std::max<std::size_t>(1, r.lower_bound)));
  text += fmt::format("replay    {} in {}", counted(r.operations, "operation"), format_time(1e9 * r.seconds));
  if (r.out_of_memory) text += "\nout of memory at " + describe_failure(r);
  return text;
}

int replay_one(const ReplayCommandOptions& options, Console& console) {
  const PolicyEntry& policy = *of_option("--policy", [&] { return &policy_named(options.policy); });
  const LatencyTable latency = of_option("--latency", [&] { return LatencyTable::named(options.latency); });
  Json answers = Json::array();
  bool failed = false;
  for (const Workload& workload : read_workloads(options.source, options.selection)) {
    ReplayOptions replay_options{.latency = &latency};
    if (!options.capacity.empty())
      replay_options.capacity = Capacity::parse(options.capacity).of(workload.lower_bound());
    const ReplayResult result = replay(workload, policy, replay_options);
    std::optional<std::size_t> smallest;
    if (options.smallest) smallest = smallest_capacity(workload, policy, {.latency = &latency});
    console.print(result_text(workload, result, !options.capacity.empty(), options.smallest, smallest));
    answers.push_back(result_json(result));
    if (options.smallest) answers.back()["smallest_capacity"] = smallest ? Json(*smallest) : Json(nullptr);
    failed |= result.out_of_memory.has_value();
  }
  console.answer(answers.size() == 1 ? answers.front() : answers);
  return failed ? exit_failed : exit_good;
}

/// The element of the only selected device.
template <class PerDevice>
PerDevice only(std::vector<PerDevice> devices, const std::string& source) {
  if (devices.size() > 1)
    throw ValueError(
        fmt::format("[lab] {} holds {} devices: choose one by --device", printable_path(source), devices.size()));
  return std::move(devices.front());
}

struct ReportOptions {
  std::string source;
  std::string output;
  std::string title;
  std::string capacity;
  std::string latency = "h200";
  bool replace = false;
  bool policies = true;
  Selection selection;
};

int report(const ReportOptions& options, Console& console) {
  check_output("report", options.output, {options.source, options.latency});
  const LatencyTable latency = of_option("--latency", [&] { return LatencyTable::named(options.latency); });
  const bool placed = options.replace || !options.capacity.empty() || options.source.starts_with("zoo:");
  std::optional<Workload> workload;
  Trace trace;
  if (placed) {
    workload = only(read_workloads(options.source, options.selection), options.source);
    trace =
        place(*workload, options.capacity.empty() ? 0 : Capacity::parse(options.capacity).of(workload->lower_bound()));
  } else {
    trace = read_trace(options.source, options.selection);
    if (options.policies) workload = workload_of(trace, source_name(options.source), options.selection.with_failed);
  }
  std::optional<Comparison> comparison;
  if (options.policies && !workload->operations.empty()) {
    std::vector<const PolicyEntry*> all;
    for (const PolicyEntry& policy : policies()) all.push_back(&policy);
    comparison = compare({*workload}, all, {.latency = &latency},
                         [&](std::size_t done, std::size_t count, const std::string& pair) {
                           console.progress().status(
                               fmt::format("{} {}", bar(static_cast<double>(done) / static_cast<double>(count)), pair));
                         });
  }
  const std::string page =
      page_html({.trace = trace,
                 .title = options.title.empty() ? source_name(options.source) : options.title,
                 .source = placed ? options.source + ", placed by poolgrad on a simulated device" : options.source,
                 .comparison = comparison ? &*comparison : nullptr,
                 .timed = !placed});
  write_file_atomically(options.output, page);
  console.print(fmt::format("wrote     {}, {}, {}", options.output, format_bytes(page.size()),
                            counted(trace.events.size(), "event")));
  console.answer({{"output", options.output}, {"bytes", page.size()}, {"events", trace.events.size()}});
  return exit_good;
}

}  // namespace

std::string policy_help() {
  return "Policies and their parameters, as in NAME:PARAMETER=VALUE,PARAMETER=VALUE:\n" + policy_text();
}

void add_latency(CLI::App& command, std::string& latency) {
  command.add_option("--latency", latency, "Latency table of device calls: h200, unit (1 us each), or a file")
      ->capture_default_str();
}

Command add_list(CLI::App& lab) {
  return {lab.add_subcommand("list", "Lists policies, zoo workloads, recordings and latency tables"), list};
}

Command add_export(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("export", "Converts a trace to another format; reads any known format");
  const auto options = std::make_shared<ExportOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("-o,--output", options->output, "The file to write")->required();
  app->add_option("--format", options->format,
                  "pytorch (memory snapshot for the public viewer), pytorch-json, chrome, rmm-csv or pgt")
      ->capture_default_str()
      ->check(CLI::IsMember(formats));
  app->add_option("--from", options->window.from, "First event");
  app->add_option("--to", options->window.to, "End of the exported events, exclusive");
  app->add_option("--min-size", options->min_size, "Omit requests smaller than this, such as 1MiB");
  add_selection(*app, options->selection, false);
  return {app, [options](Console& console) { return export_trace(*options, console); }};
}

Command add_replay(CLI::App& lab) {
  CLI::App* app =
      lab.add_subcommand("replay", "Replays a workload through one policy; exit code 3 if it runs out of memory");
  app->footer(policy_help);
  const auto options = std::make_shared<ReplayCommandOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("--policy", options->policy, "A policy of lab list, with parameters: pytorch:max_split=20MiB")
      ->capture_default_str();
  app->add_option("--capacity", options->capacity,
                  "Device capacity: 8GiB, or 1.05x the lower bound (default: no limit below 1 TiB)");
  app->add_flag("--find-min-capacity", options->smallest, "Find the smallest capacity that suffices");
  add_latency(*app, options->latency);
  add_selection(*app, options->selection);
  return {app, [options](Console& console) { return replay_one(*options, console); }};
}

Command add_report(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("report", "Writes one HTML page that shows a trace, for any browser");
  const auto options = std::make_shared<ReportOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("-o,--output", options->output, "The page to write")->required();
  app->add_option("--title", options->title, "Title of the page (default: the name of the trace)");
  app->add_flag("--place", options->replace, "Show poolgrad's own placement of the trace's allocations");
  app->add_option("--capacity", options->capacity,
                  "Device capacity for that placement: 8GiB, or 1.05x (implies --place)");
  app->add_flag("!--no-policies", options->policies, "Leave out the table of policies");
  add_latency(*app, options->latency);
  add_selection(*app, options->selection);
  return {app, [options](Console& console) { return report(*options, console); }};
}

int run_lab(int argc, const char* const* argv, std::ostream& out, std::ostream& errors, bool live) {
  CLI::App app("Records, replays, compares and draws the work of an allocator.", "./run lab");
  app.require_subcommand(1);
  app.footer("A TRACE is a file (.pgt, PyTorch memory snapshot as pickle or JSON, RMM or plain CSV) or zoo:NAME.");
  ConsoleOptions options;
  std::vector<Command> commands;
  for (const auto add : {add_record, add_replay, add_compare, add_report, add_demo_oom, add_export, add_list}) {
    commands.push_back(add(app));
    commands.back().app->add_flag("--json", options.json, "Print JSON");
    commands.back().app->add_flag("--quiet", options.quiet, "Print only errors (and JSON, if requested)");
  }
  try {
    read_command_line(app, argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, errors) == 0 ? exit_good : exit_usage;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    try {
      Console console(out, options, live);
      return command.run(console);
    } catch (const std::exception& error) {
      errors << sentence_of(error) << std::endl;
      return exit_error;
    }
  }
  return exit_usage;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view zoo_prefix = "zoo:";

}  // namespace

void check_output(const std::string& command, const std::string& output, const std::vector<std::string>& inputs) {
  std::vector<InputFile> files;
  std::error_code unknown;  // names such as zoo:checkerboard have no file
  for (const std::string& input : inputs)
    if (fs::exists(input, unknown)) files.push_back({"its input", input});
  check_files(command, {{"-o", output}}, files);
  nn::check_replaceable(output, command);
}

std::string source_name(const std::string& source) {
  return source.starts_with(zoo_prefix) ? source.substr(zoo_prefix.size())
                                        : printable(fs::path(source).stem().string());
}

void add_selection(CLI::App& command, Selection& selection, bool replays) {
  command.add_option("--device", selection.device, "Only this device index of a memory snapshot");
  if (replays)
    command.add_flag("--with-failed", selection.with_failed,
                     "Also replay the failed allocations, and free them at once");
}

namespace {

/// The traces of the selected devices, without empty ones.
std::vector<Trace> read_traces(const std::string& source, const Selection& selection) {
  std::vector<Trace> traces = load_traces(source);
  std::erase_if(traces, [](const Trace& trace) { return trace.events.empty() && trace.blocks.empty(); });
  if (!selection.device) return traces;
  std::string found;
  for (const Trace& trace : traces) found += (found.empty() ? "" : ", ") + to_string(trace.device);
  std::erase_if(traces, [&](const Trace& trace) { return trace.device.index != *selection.device; });
  if (traces.empty())
    throw ValueError(fmt::format("[lab] --device {}: {} holds {}", *selection.device, printable_path(source),
                                 found.empty() ? "no device" : found));
  return traces;
}

}  // namespace

std::vector<Workload> read_workloads(const std::string& source, const Selection& selection) {
  if (source.starts_with(zoo_prefix)) {
    if (selection.device) throw ValueError("[--device] a workload of the zoo has one device: " + printable(source));
    if (selection.with_failed)
      throw ValueError("[--with-failed] a workload of the zoo has no failed requests: " + printable(source));
    return {of_option("zoo", [&] { return zoo_workload(source_name(source)); })};
  }
  std::vector<Workload> workloads;
  const std::vector<Trace> traces = read_traces(source, selection);
  for (const Trace& trace : traces) {
    const std::string device = traces.size() > 1 ? " " + to_string(trace.device) : "";
    Workload workload = workload_of(trace, source_name(source) + device, selection.with_failed);
    workload.description = printable_path(source) + device;
    if (!workload.operations.empty()) workloads.push_back(std::move(workload));
  }
  if (workloads.empty())
    throw FileError("[read] " + printable_path(source) + ": no allocation was recorded, so there is nothing to replay");
  return workloads;
}

Trace read_trace(const std::string& source, const Selection& selection) {
  if (source.starts_with(zoo_prefix)) return place(read_workloads(source, selection).front());
  std::vector<Trace> traces = read_traces(source, selection);
  return traces.empty() ? Trace() : only(std::move(traces), source);
}

std::vector<std::string> recordings() {
  const char* set = std::getenv("POOLGRAD_RECORDINGS");
  const fs::path folder = set ? set : POOLGRAD_RECORDINGS;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".pgt") paths.push_back(entry->path().string());
  std::ranges::sort(paths);
  return paths;
}

Trace place(const Workload& workload, std::size_t capacity) {
  constexpr std::size_t least = std::size_t{1} << 30;
  Trace trace;
  const PolicyEntry recorder{.name = "poolgrad", .description = "", .make = [&](const PolicyContext& context) {
                               return make_poolgrad(context, AllocatorConfig{}, &trace);
                             }};
  replay(workload, recorder, {.capacity = capacity ? capacity : std::max(least, 8 * workload.lower_bound())});
  trace.locations.resize(1);  // the other call sites are in this program
  for (TraceEvent& event : trace.events) event.location = 0;
  return trace;
}

}  // namespace poolgrad::examples
