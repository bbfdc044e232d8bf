#include <fmt/format.h>

#include <memory>
#include <optional>

#include "allocator/caching_allocator.h"
#include "allocator/latency.h"
#include "examples/lab/command.h"
#include "examples/lab/comparison.h"
#include "examples/lab/source.h"

namespace poolgrad::examples {

namespace {

struct ReplayCommandOptions {
  std::string source;
  std::string policy = "poolgrad";
  std::string capacity;
  std::string latency = "h200";
  bool smallest = false;
};

Json to_json(const ReplayResult& r, std::optional<std::size_t> smallest) {
  Json json{{"policy", r.policy},
            {"workload", r.workload},
            {"capacity", r.capacity},
            {"lower_bound", r.lower_bound},
            {"peak_reserved", r.peak_reserved},
            {"peak_active", r.peak_active},
            {"peak_requested", r.peak_requested},
            {"utilisation", r.utilisation()},
            {"operations", r.operations},
            {"device_allocations", r.counters.allocations},
            {"device_frees", r.counters.frees},
            {"events", r.counters.events},
            {"waits", r.counters.waits},
            {"synchronizations", r.counters.synchronizations},
            {"modelled_ns", r.modelled_ns},
            {"seconds", r.seconds},
            {"out_of_memory", nullptr}};
  if (r.out_of_memory) json["out_of_memory"] = {{"operation", *r.out_of_memory}};
  if (r.out_of_memory_step) json["out_of_memory"]["step"] = *r.out_of_memory_step;
  if (smallest) json["smallest_capacity"] = *smallest;
  return json;
}

std::string to_text(const Workload& workload, const ReplayResult& r, bool limited,
                    std::optional<std::size_t> smallest) {
  std::string text =
      fmt::format("workload  {}: {}\n          {} operations, lower bound {}\n", workload.name, workload.description,
                  format_integer(workload.operations.size()), format_bytes(r.lower_bound));
  text += fmt::format("policy    {}{}\n", r.policy, limited ? " in " + format_bytes(r.capacity) : " without a limit");
  text += fmt::format("memory    peak {} requested, {} active, {} reserved: utilisation {}\n",
                      format_bytes(r.peak_requested), format_bytes(r.peak_active), format_bytes(r.peak_reserved),
                      format_percent(r.utilisation()));
  text += fmt::format(
      "device    {} allocations, {} frees, {} events, {} waits, {} synchronisations: {} of device time\n",
      format_integer(r.counters.allocations), format_integer(r.counters.frees), format_integer(r.counters.events),
      format_integer(r.counters.waits), format_integer(r.counters.synchronizations), format_time(r.modelled_ns));
  if (smallest)
    text += fmt::format("smallest  capacity {}, {:.3f} x the lower bound\n", format_bytes(*smallest),
                        static_cast<double>(*smallest) / static_cast<double>(std::max<std::size_t>(1, r.lower_bound)));
  text += fmt::format("replay    {} operations in {}", format_integer(r.operations), format_time(1e9 * r.seconds));
  if (r.out_of_memory) text += "\nout of memory at " + describe_failure(r);
  return text;
}

int replay_one(const ReplayCommandOptions& options, Console& console) {
  const PolicyEntry& policy = policy_named(options.policy);
  const LatencyTable latency = LatencyTable::named(options.latency);
  const Workload workload = read_workload(options.source);
  ReplayOptions replay_options{.latency = &latency};
  if (!options.capacity.empty()) replay_options.capacity = Capacity::parse(options.capacity).of(workload.lower_bound());
  const ReplayResult result = replay(workload, policy, replay_options);
  std::optional<std::size_t> smallest;
  if (options.smallest) smallest = smallest_capacity(workload, policy, {.latency = &latency});
  console.print(to_text(workload, result, !options.capacity.empty(), smallest));
  console.answer(to_json(result, smallest));
  return result.out_of_memory ? exit_failed : exit_good;
}

}  // namespace

Command add_replay(CLI::App& lab) {
  CLI::App* app = lab.add_subcommand("replay", "One workload through one policy; exit code 3 if it runs out of memory");
  app->footer(policy_help);
  const auto options = std::make_shared<ReplayCommandOptions>();
  app->add_option("trace", options->source, "TRACE or zoo:NAME")->required();
  app->add_option("--policy", options->policy, "One of those that list shows, with parameters: pytorch:max_split=20MiB")
      ->capture_default_str();
  app->add_option("--capacity", options->capacity, "Of the device: 8GiB, or 1.05x the lower bound (default: no limit)");
  app->add_flag("--find-min-capacity", options->smallest, "Find the smallest capacity that suffices");
  app->add_option("--latency", options->latency,
                  "What calls to the device cost: h200, unit (1 us each), or a table's file")
      ->capture_default_str();
  return {app, [options](Console& console) { return replay_one(*options, console); }};
}

}  // namespace poolgrad::examples
