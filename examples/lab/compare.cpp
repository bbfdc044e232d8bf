// Compares policies on many workloads, as tables and as JSON.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "allocator/caching_allocator.h"
#include "allocator/lab/zoo/zoo.h"
#include "allocator/memory/latency.h"
#include "examples/lab/comparison.h"
#include "examples/lab/lab.h"
#include "examples/support/options.h"

namespace poolgrad::examples {

namespace {

/// One row for each workload, one column for each policy.
std::string matrix(const Comparison& comparison, const std::string& title, auto cell) {
  std::vector<std::string> headers{"<" + title};
  for (const PolicyEntry* policy : comparison.policies) headers.emplace_back(policy->name);
  Table table(std::move(headers));
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    std::vector<std::string> cells{comparison.rows[row].name};
    for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) cells.push_back(cell(row, policy));
    table.add(std::move(cells));
  }
  return table.text() + "\n";
}

/// `files` are the workloads outside the zoo, which have a column of their own.
std::string averages(const Comparison& comparison, const Comparison& files) {
  const std::vector<Capacity>& curve = comparison.options.curve;
  std::vector<std::string> headers{"<policy", "utilisation", "worst", "<at"};
  if (!curve.empty()) headers.push_back("utilisation at " + curve.back().text());
  for (const char* header : {"capacity", "worst", "<at"}) headers.emplace_back(header);
  headers.push_back("OOM at " + comparison.options.tight.text());
  for (const char* header : {"device calls", "events", "waits", "device time", "of pytorch", "per operation"})
    headers.emplace_back(header);
  if (!files.rows.empty()) headers.push_back(counted(files.rows.size(), "file"));
  const auto plain = std::ranges::find(comparison.policies, std::string_view("pytorch"), &PolicyEntry::name);
  double pytorch_ns = 0;
  if (plain != comparison.policies.end())
    pytorch_ns = summary_of(comparison, static_cast<std::size_t>(plain - comparison.policies.begin())).modelled_ns;
  Table table(std::move(headers));
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    const Summary s = summary_of(comparison, policy);
    std::string name(comparison.policies[policy]->name);
    if (s.served < comparison.rows.size()) name += fmt::format(" (of {} that it serves)", s.served);
    std::vector<std::string> cells{std::move(name), s.served > 0 ? format_percent(s.utilisation) : "-",
                                   s.served > 0 ? format_percent(s.worst_utilisation) : "-", s.worst_utilisation_at};
    if (!curve.empty()) cells.push_back(s.limited_utilisation ? format_percent(*s.limited_utilisation) : "-");
    for (std::string cell :
         {factor_text(s.factor), s.factor ? factor_text(s.worst_factor) : "-", s.worst_factor_at,
          fmt::format("{} of {}", s.ran_out, comparison.rows.size()),
          format_integer(s.counters.allocations + s.counters.frees), format_integer(s.counters.events),
          format_integer(s.counters.waits), format_time(s.modelled_ns),
          pytorch_ns > 0 ? fmt::format("{:.3g}x", s.modelled_ns / pytorch_ns) : "-", format_time(s.ns_per_operation)})
      cells.push_back(std::move(cell));
    if (!files.rows.empty()) cells.push_back(factor_text(summary_of(files, policy).factor));
    table.add(std::move(cells));
  }
  return table.text() + "\n";
}

/// Device time by capacity: a row for each policy, a column for each capacity.
std::string curves(const Comparison& comparison) {
  if (comparison.options.curve.empty()) return "";
  std::vector<std::string> headers{"<served, device time at"};
  for (const Capacity& capacity : comparison.options.curve) headers.push_back(capacity.text());
  headers.emplace_back("no limit");
  Table table(std::move(headers));
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    std::vector<std::string> cells{std::string(comparison.policies[policy]->name)};
    for (const CurvePoint& point : curve_of(comparison, policy))
      cells.push_back(fmt::format("{}  {:>8}", point.served, format_time(point.device_ns)));
    table.add(std::move(cells));
  }
  return table.text() + "\n";
}

/// The best online policy besides poolgrad by average utilization and capacity, among policies that serve every
/// workload.
std::string best_other(const Comparison& comparison) {
  std::string_view by_utilisation, by_capacity;
  double utilisation = -1, factor = std::numeric_limits<double>::infinity();
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    const PolicyEntry& entry = *comparison.policies[policy];
    if (!entry.online || entry.name == "poolgrad") continue;
    const Summary s = summary_of(comparison, policy);
    if (s.served < comparison.rows.size()) continue;
    if (s.utilisation > utilisation) {
      utilisation = s.utilisation;
      by_utilisation = entry.name;
    }
    if (s.factor && *s.factor < factor) {
      factor = *s.factor;
      by_capacity = entry.name;
    }
  }
  if (by_utilisation.empty()) return "";
  std::string text =
      fmt::format("  best other online policy: {} by utilisation ({})", by_utilisation, format_percent(utilisation));
  if (!by_capacity.empty()) text += fmt::format(", {} by capacity ({})", by_capacity, factor_text(factor));
  return text + "\n\n";
}

Json to_json(const Goal& goal) {
  return {{"name", goal.name}, {"promise", goal.promise}, {"found", goal.found}, {"met", goal.met}};
}

Json to_json(const Measurement& m, const PolicyEntry& policy, std::optional<double> factor) {
  Json json = result_json(m.unlimited);
  json["online"] = policy.online;
  json["served"] = m.served();
  json["out_of_memory_at"] = nullptr;
  if (!m.served()) json["utilisation"] = nullptr;
  if (m.tight.out_of_memory) json["out_of_memory_at"] = *m.tight.out_of_memory;
  for (const ReplayResult& point : m.curve)
    json["curve"].push_back({{"capacity", point.capacity},
                             {"device_ns", point.modelled_ns},
                             {"peak_reserved", point.peak_reserved},
                             {"out_of_memory", point.out_of_memory.has_value()}});
  if (m.smallest) json["smallest_capacity"] = *m.smallest;
  if (factor) json["smallest_over_bound"] = *factor;
  return json;
}

std::string workload_text(const Comparison& comparison, std::size_t row) {
  const Comparison::Row& workload = comparison.rows[row];
  std::string text = fmt::format("{}: {}\n  {}, lower bound {}\n", workload.name, workload.description,
                                 counted(workload.operations, "operation"), format_bytes(workload.lower_bound));
  PolicyTable results = policy_table(comparison, row);
  Table table(std::move(results.headers));
  for (std::vector<std::string>& cells : results.rows) table.add(std::move(cells));
  return text + table.text();
}

std::string summary_text(const Comparison& comparison) {
  std::string text;
  if (comparison.options.smallest)
    text += matrix(comparison, "smallest capacity / lower bound", [&](std::size_t row, std::size_t policy) {
      const std::optional<double> factor = comparison.factor(row, policy);
      return factor ? fmt::format("{:.3f}", *factor) : "-";
    });
  text += matrix(comparison, "utilisation, %", [&](std::size_t row, std::size_t policy) {
    const Measurement& m = comparison.rows[row].policies[policy];
    return m.served() ? fmt::format("{:.1f}", 100 * m.unlimited.utilisation()) : "-";
  });
  const Comparison zoo = comparison.part(true), files = comparison.part(false);
  const Comparison& main = zoo.rows.empty() ? files : zoo;
  text += averages(main, zoo.rows.empty() ? zoo : files) + curves(main) + best_other(main);
  Table goals({"<goal", "<promised", "<found", "<"});
  const std::vector<Goal> any = goals_of(comparison);
  for (const Goal& goal : any) goals.add({goal.name, goal.promise, goal.found, goal.met ? "met" : "MISSED"});
  std::uint64_t operations = 0;
  for (const Comparison::Row& row : comparison.rows) operations += row.operations;
  return text + (any.empty() ? "" : goals.text() + "\n") +
         fmt::format(
             "  {} of {}, {}, {}, {}", counted(comparison.rows.size(), "workload"), counted(operations, "operation"),
             comparison.policies.size() == 1 ? "1 policy" : std::to_string(comparison.policies.size()) + " policies",
             counted(comparison.options.threads, "thread"), format_time(1e9 * comparison.seconds));
}

Json to_json(const Comparison& comparison) {
  Json json{{"workloads", Json::array()},
            {"policies", Json::array()},
            {"goals", Json::array()},
            {"seconds", comparison.seconds}};
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) {
    const Comparison::Row& workload = comparison.rows[row];
    Json results = Json::array();
    for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy)
      results.push_back(
          to_json(workload.policies[policy], *comparison.policies[policy], comparison.factor(row, policy)));
    json["workloads"].push_back({{"name", workload.name},
                                 {"zoo", workload.zoo},
                                 {"description", workload.description},
                                 {"operations", workload.operations},
                                 {"lower_bound", workload.lower_bound},
                                 {"results", results}});
  }
  const Comparison zoo = comparison.part(true), files = comparison.part(false);
  for (std::size_t policy = 0; policy < comparison.policies.size(); ++policy) {
    const Summary s = summary_of(zoo.rows.empty() ? files : zoo, policy);
    Json summary{{"policy", comparison.policies[policy]->name},
                 {"served", s.served},
                 {"utilisation", nullptr},
                 {"worst_utilisation", nullptr},
                 {"ran_out", s.ran_out},
                 {"device_ns", s.modelled_ns},
                 {"ns_per_operation", s.ns_per_operation}};
    if (s.served > 0) {
      summary["utilisation"] = s.utilisation;
      summary["worst_utilisation"] = s.worst_utilisation;
    }
    if (s.limited_utilisation) summary["limited_utilisation"] = *s.limited_utilisation;
    if (s.factor) {
      summary["smallest_over_bound"] = *s.factor;
      summary["worst_smallest_over_bound"] = s.worst_factor;
    }
    if (const Summary of_files = summary_of(files, policy); of_files.factor)
      summary["files_smallest_over_bound"] = *of_files.factor;
    json["policies"].push_back(std::move(summary));
  }
  for (const Goal& goal : goals_of(comparison)) json["goals"].push_back(to_json(goal));
  return json;
}

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
  Selection selection;
};

struct Sources {
  std::vector<Workload> workloads;
  std::vector<bool> of_zoo;  // or a recording
};

/// "zoo" expands to the whole zoo and the recordings.
Sources read_sources(const std::vector<std::string>& names, const Selection& selection) {
  Sources sources;
  // The selection is for files, and is refused if there are none.
  const bool has_files =
      std::ranges::any_of(names, [](const std::string& name) { return name != "zoo" && !name.starts_with("zoo:"); });
  const auto add = [&](const std::string& name, bool of_zoo) {
    for (Workload& workload : read_workloads(name, of_zoo && has_files ? Selection() : selection)) {
      sources.workloads.push_back(std::move(workload));
      sources.of_zoo.push_back(of_zoo);
    }
  };
  for (const std::string& name : names) {
    if (name != "zoo") {
      add(name, name.starts_with("zoo:"));
      continue;
    }
    for (const ZooEntry& entry : trace_zoo()) add("zoo:" + std::string(entry.name), true);
    for (const std::string& path : recordings()) add(path, true);
  }
  return sources;
}

std::vector<const PolicyEntry*> choose(const std::vector<std::string>& names) {
  std::vector<const PolicyEntry*> chosen;
  for (const std::string& name : names) chosen.push_back(of_option("--policy", [&] { return &policy_named(name); }));
  if (names.empty())
    for (const PolicyEntry& policy : policies()) chosen.push_back(&policy);
  return chosen;
}

int compare_all(const CompareOptions& options, Console& console) {
  const LatencyTable latency = of_option("--latency", [&] { return LatencyTable::named(options.latency); });
  ComparisonOptions comparison_options{.latency = &latency,
                                       .tight = Capacity::parse(options.tight),
                                       .smallest = options.smallest,
                                       .threads = options.threads};
  if (options.curves)
    for (const std::string& capacity : options.curve) comparison_options.curve.push_back(Capacity::parse(capacity));
  const std::vector<const PolicyEntry*> chosen = choose(options.policies);
  const bool has_goal = std::ranges::any_of(chosen, [&](const PolicyEntry* policy) {
    return policy->name == "poolgrad" || (policy->name == "planned" && options.smallest);
  });
  if (options.check && !has_goal)
    throw ValueError("[compare] --check needs --policy poolgrad or planned: no other policy has a goal");
  const Sources sources = read_sources(options.sources, options.selection);
  if (options.check && std::ranges::find(sources.of_zoo, true) == sources.of_zoo.end())
    throw ValueError("[compare] --check needs a workload of the zoo: no other workload has a goal");
  const Stopwatch watch;
  Comparison comparison = compare(
      sources.workloads, chosen, comparison_options, [&](std::size_t done, std::size_t all, const std::string& pair) {
        const double fraction = static_cast<double>(done) / static_cast<double>(all);
        const double seconds = watch.seconds();
        console.progress().status(fmt::format("{} {}/{}  {}  ETA {}", bar(fraction), done, all, pair,
                                              format_duration(seconds / fraction - seconds)));
      });
  for (std::size_t row = 0; row < comparison.rows.size(); ++row) comparison.rows[row].zoo = sources.of_zoo[row];
  if (!options.summary)
    for (std::size_t row = 0; row < comparison.rows.size(); ++row) console.print(workload_text(comparison, row));
  console.print(summary_text(comparison));
  console.answer(to_json(comparison));
  const std::vector<Goal> goals = goals_of(comparison);
  const bool kept = std::ranges::all_of(goals, &Goal::met);
  return options.check && !kept ? exit_failed : exit_good;
}

}  // namespace

Command add_compare(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("compare", "Compares many policies on many workloads");
  app->footer(policy_help);
  const auto options = std::make_shared<CompareOptions>();
  app->add_option("trace", options->sources, "TRACE, zoo:NAME, or zoo for the whole zoo and the recordings")
      ->capture_default_str();
  app->add_option("--policy", options->policies, "Policies (default: all), with parameters: pytorch:max_split=20MiB");
  app->add_option("--capacity", options->tight, "Capacity of the out-of-memory test: 8GiB, or 1.05x the lower bound")
      ->capture_default_str();
  app->add_flag("!--no-min-capacity", options->smallest, "Do not find smallest capacities");
  app->add_option("--curve", options->curve, "Capacities at which device time is measured")
      ->delimiter(',')
      ->capture_default_str();
  app->add_flag("!--no-curve", options->curves, "Measure device time only without a limit");
  add_latency(*app, options->latency);
  add_selection(*app, options->selection);
  app->add_option("--threads", options->threads, "Threads that replay at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app->add_flag("--summary", options->summary, "Omit the tables of single workloads");
  app->add_flag("--check", options->check, "End with exit code 3 if a goal is missed");
  return {app, [options](Console& console) { return compare_all(*options, console); }};
}

}  // namespace poolgrad::examples
