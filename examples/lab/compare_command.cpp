#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "allocator/latency.h"
#include "allocator/replay/zoo.h"
#include "examples/lab/command.h"
#include "examples/lab/comparison_text.h"
#include "examples/lab/source.h"

namespace poolgrad::examples {

namespace {

struct CompareOptions {
  std::vector<std::string> sources{"zoo"};
  std::vector<std::string> policies;
  std::string tight = "1.05x";
  std::vector<std::string> curve{"1.01x", "1.05x", "1.1x", "1.25x", "1.5x", "2x"};
  std::string latency = "h200";
  bool smallest = true;
  bool curves = true;
  bool summary = false;
  bool check = false;
  unsigned threads = 2;
};

/// "zoo" stands for the whole zoo, and the recordings.
std::vector<Workload> read_workloads(const std::vector<std::string>& sources) {
  std::vector<Workload> workloads;
  for (const std::string& source : sources) {
    if (source != "zoo") {
      workloads.push_back(read_workload(source));
      continue;
    }
    for (const ZooEntry& entry : trace_zoo()) workloads.push_back(zoo_workload(entry.name));
    for (const std::string& path : recordings()) workloads.push_back(read_workload(path));
  }
  return workloads;
}

std::vector<const PolicyEntry*> choose(const std::vector<std::string>& names) {
  std::vector<const PolicyEntry*> chosen;
  for (const std::string& name : names) chosen.push_back(&policy_named(name));
  if (names.empty())
    for (const PolicyEntry& policy : policies()) chosen.push_back(&policy);
  return chosen;
}

int compare_all(const CompareOptions& options, Console& console) {
  const LatencyTable latency = LatencyTable::named(options.latency);
  ComparisonOptions comparison_options{.latency = &latency,
                                       .tight = Capacity::parse(options.tight),
                                       .smallest = options.smallest,
                                       .threads = options.threads};
  if (options.curves)
    for (const std::string& capacity : options.curve) comparison_options.curve.push_back(Capacity::parse(capacity));
  const std::vector<const PolicyEntry*> chosen = choose(options.policies);
  const std::vector<Workload> workloads = read_workloads(options.sources);
  const auto start = std::chrono::steady_clock::now();
  const Comparison comparison =
      compare(workloads, chosen, comparison_options, [&](std::size_t done, std::size_t all, const std::string& pair) {
        const double fraction = static_cast<double>(done) / static_cast<double>(all);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        console.progress().status(fmt::format("{} {}/{}  {}  ETA {}", bar(fraction), done, all, pair,
                                              format_duration(seconds / fraction - seconds)));
      });
  if (!options.summary)
    for (std::size_t row = 0; row < comparison.rows.size(); ++row) console.print(workload_text(comparison, row));
  console.print(summary_text(comparison));
  console.answer(to_json(comparison));
  const std::vector<Goal> goals = goals_of(comparison);
  const bool kept = std::ranges::all_of(goals, [](const Goal& goal) { return goal.met || goal.timing; });
  return options.check && !kept ? exit_failed : exit_good;
}

}  // namespace

Command add_compare(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("compare", "Many workloads through many policies, side by side");
  app->footer(policy_help);
  const auto options = std::make_shared<CompareOptions>();
  app->add_option("trace", options->sources, "TRACE, zoo:NAME, or zoo: all of it, and the recordings")
      ->capture_default_str();
  app->add_option("--policy", options->policies, "Policies (default: all), with parameters: pytorch:max_split=20MiB");
  app->add_option("--capacity", options->tight,
                  "Where running out of memory is looked for: 8GiB, or 1.05x the lower bound")
      ->capture_default_str();
  app->add_flag("--find-min-capacity,!--no-min-capacity", options->smallest, "Find smallest capacities (default: yes)");
  app->add_option("--curve", options->curve, "Capacities at which device time is measured")
      ->delimiter(',')
      ->capture_default_str();
  app->add_flag("!--no-curve", options->curves, "Measure device time without limit alone");
  app->add_option("--latency", options->latency,
                  "What calls to the device cost: h200, unit (1 us each), or a table's file")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Replays at once")->capture_default_str()->check(CLI::Range(1, 256));
  app->add_flag("--summary", options->summary, "No tables of single workloads");
  app->add_flag("--check", options->check, "Exit code 3 if a goal is missed, those of speed left out");
  return {app, [options](Console& console) { return compare_all(*options, console); }};
}

}  // namespace poolgrad::examples
