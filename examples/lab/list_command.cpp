#include <fmt/format.h>

#include "allocator/latency.h"
#include "allocator/replay/policy.h"
#include "allocator/replay/zoo.h"
#include "examples/lab/command.h"
#include "examples/lab/source.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

namespace {

std::string policy_text() {
  Table table({"<policy", "<", "<what it is"});
  for (const PolicyEntry& policy : policies()) {
    table.add({std::string(policy.name), policy.online ? "" : "knows the future", std::string(policy.description)});
    for (const PolicyParameter& parameter : policy.parameters) {
      table.add({"", "", fmt::format("  :{}= {}", parameter.name, parameter.description)});
    }
  }
  return table.text();
}

int list(Console& console) {
  Json answer{{"policies", Json::array()}, {"workloads", Json::array()}, {"recordings", Json::array()}};
  for (const PolicyEntry& policy : policies()) {
    Json parameters = Json::object();
    for (const PolicyParameter& parameter : policy.parameters) {
      parameters[std::string(parameter.name)] = parameter.description;
    }
    answer["policies"].push_back({{"name", policy.name},
                                  {"online", policy.online},
                                  {"description", policy.description},
                                  {"parameters", parameters}});
  }
  Table zoo_table({"<workload", "<what it is"});
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

}  // namespace

std::string policy_help() {
  return "Policies and their parameters, as in NAME:PARAMETER=VALUE,PARAMETER=VALUE:\n" + policy_text();
}

Command add_list(CLI::App& lab) {
  return {lab.add_subcommand("list", "Policies, workloads of the zoo, recordings and latency tables"), list};
}

}  // namespace poolgrad::examples
