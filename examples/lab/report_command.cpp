#include <fmt/format.h>

#include <memory>
#include <optional>

#include "allocator/atomic_file.h"
#include "allocator/caching_allocator.h"
#include "allocator/latency.h"
#include "examples/lab/command.h"
#include "examples/lab/page_data.h"
#include "examples/lab/source.h"

namespace poolgrad::examples {

namespace {

struct ReportOptions {
  std::string source;
  std::string output;
  std::string title;
  std::string capacity;
  std::string latency = "h200";
  bool replace = false;
  bool policies = true;
};

int report(const ReportOptions& options, Console& console) {
  const LatencyTable latency = LatencyTable::named(options.latency);
  const bool placed = options.replace || !options.capacity.empty() || options.source.starts_with("zoo:");
  std::optional<Workload> workload;
  Trace trace;
  if (placed) {
    workload = read_workload(options.source);
    trace =
        place(*workload, options.capacity.empty() ? 0 : Capacity::parse(options.capacity).of(workload->lower_bound()));
  } else {
    trace = read_trace(options.source);
    if (options.policies) workload = workload_of(trace, source_name(options.source));
  }
  std::optional<Comparison> comparison;
  if (options.policies) {
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
  console.print(fmt::format("wrote     {}, {}, {} events", options.output, format_bytes(page.size()),
                            format_integer(trace.events.size())));
  console.answer({{"output", options.output}, {"bytes", page.size()}, {"events", trace.events.size()}});
  return exit_good;
}

}  // namespace

Command add_report(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("report", "One page that shows a trace: open it in any browser");
  const auto options = std::make_shared<ReportOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("-o,--output", options->output, "The page to write")->required();
  app->add_option("--title", options->title, "Of the page (default: the name of the trace)");
  app->add_flag("--place", options->replace, "Show poolgrad's own placement of the trace's allocations");
  app->add_option("--capacity", options->capacity, "With a device of this capacity: 8GiB, or 1.05x (means --place)");
  app->add_flag("--policies,!--no-policies", options->policies, "With the table of policies (default: yes)");
  app->add_option("--latency", options->latency,
                  "What calls to the device cost: h200, unit (1 us each), or a table's file")
      ->capture_default_str();
  return {app, [options](Console& console) { return report(*options, console); }};
}

}  // namespace poolgrad::examples
