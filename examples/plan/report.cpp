// Prints a plan as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "allocator/caching_allocator.h"
#include "examples/lab/page.h"
#include "examples/plan/plan.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

std::string describe_model(const TrainOptions& o) {
  return fmt::format("{}, width {}, {} ({} for keys), context {}, {}, {}{}{}{}", plural(o.layers.count(), "layer"),
                     o.width, plural(o.heads, "head"), o.model().kv_heads, o.context, o.describe_attention(),
                     to_string(o.model().dtype), o.autocast == "none" ? "" : " with products in " + o.autocast,
                     o.batch > 1 ? fmt::format(", batch {}", o.batch) : "",
                     o.accumulate > 1 ? fmt::format(", {} batches a step", o.accumulate) : "");
}

std::string time_text(const Plan& plan, const PlanRow& row) {
  const double time = plan.relative_time(row);
  return time > 0 ? fmt::format("{:.2f}x", time) : "-";
}

namespace {

bool is_measured(const PlanRow& row) { return row.measured && row.measured->failure.empty(); }

std::string tokens_text(const Plan& plan, const Longest& longest) {
  return (longest.context == plan.most ? "at least " : "") +
         format_integer(static_cast<std::uint64_t>(longest.context));
}

/// Whether the measured peaks equal the planned ones.
std::string agreement_text(const PlanRow& row) {
  if (!is_measured(row)) return "-";
  const std::uint64_t live = row.measured->peak_live, reserved = row.measured->peak_reserved;
  if (live == row.run.peak_live && reserved == row.run.peak_reserved) return "to the byte";
  return fmt::format("no: {} live, {} reserved", format_integer(live), format_integer(reserved));
}

}  // namespace

Table row_table(const Plan& plan) {
  std::vector<std::string> head{"<", "live", "reserved", "<fits in " + format_bytes(plan.memory), "time of a step"};
  if (plan.measure > 0) head.insert(head.end(), {"ms a step", "<as measured"});
  if (plan.longest) head.push_back("longest context in it");
  Table rows(head);
  std::string group;
  for (const PlanRow& row : plan.rows) {
    if (!row.policy.empty() && row.group != std::exchange(group, row.group)) {
      if (&row != &plan.rows.front()) rows.rule();
      std::vector<std::string> line(head.size());
      line[0] = row.group;
      rows.add(std::move(line));
    }
    const std::string name = row.policy.empty() && row.group.empty() ? "as told" : row.group;
    std::vector<std::string> line{row.policy.empty() ? name : (group.empty() ? "" : "  ") + row.policy,
                                  format_bytes(row.run.peak_live), format_bytes(row.run.peak_reserved),
                                  row.fits ? "yes" : "no", time_text(plan, row)};
    if (plan.measure > 0) {
      line.push_back(is_measured(row) ? fmt::format("{:.1f}", row.measured->milliseconds) : "-");
      line.push_back(agreement_text(row));
    }
    if (plan.longest) line.push_back(tokens_text(plan, row.longest));
    rows.add(std::move(line));
  }
  return rows;
}

std::string measurement_notes(const Plan& plan) {
  std::string text;
  for (const PlanRow& row : plan.rows)
    if (row.measured && !is_measured(row))
      text += fmt::format("  not measured: {}: {}\n", row.name(), row.measured->failure);
  if (plan.measure > 0)
    text += fmt::format(
        "  median of {} steps, everything trained on this machine; peaks of live and reserved bytes are those "
        "planned{}\n",
        std::max<std::int64_t>(1, plan.measure - 1), plan.longest ? ", as are the longest contexts" : "");
  return text;
}

Table holder_table(const Plan& plan, std::size_t most) {
  Table holders({"bytes", "share", "<category", "<scope"});
  for (std::size_t i = 0; i < plan.picture.holders.size() && i < most; ++i) {
    const Json& holder = plan.picture.holders[i];
    holders.add({format_bytes(holder["bytes"].get<std::size_t>()), format_percent(holder["share"].get<double>()),
                 holder["category"].get<std::string>(), holder["scope"].get<std::string>()});
  }
  return holders;
}

std::string longest_text(const Plan& plan) {
  std::string text;
  for (const PlanRow& row : plan.rows)
    text +=
        fmt::format("longest  {} tokens train in {}{}{}\n", tokens_text(plan, row.longest), format_bytes(plan.memory),
                    row.name().empty() ? "" : ", " + row.name(),
                    row.longest.context ? fmt::format(": {} bytes a token, peak {}",
                                                      format_integer(row.longest.run.peak_reserved /
                                                                     static_cast<std::uint64_t>(row.longest.context)),
                                                      format_bytes(row.longest.run.peak_reserved))
                                        : "");
  return text;
}

Table device_table(const Plan& plan) {
  std::vector<std::string> head{"<device"};
  for (const PlanRow& row : plan.rows) head.push_back(row.name().empty() ? "longest context" : row.name());
  Table devices(head);
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    std::vector<std::string> cells{plan.devices[d].name};
    for (const PlanRow& row : plan.rows) cells.push_back(tokens_text(plan, row.devices[d]));
    devices.add(cells);
  }
  return devices;
}

std::string whose_memory(const Plan& plan) {
  if (plan.rows.front().options.device == "cuda") return "of a GPU";
  return "like this cpu: " + engines_of(cpu).to_string();
}

std::string plan_text(const Plan& plan) {
  const PlanRow& first = plan.rows.front();
  const auto spare = [&](const PlanRow& row) {
    return row.fits ? "fits in " + format_bytes(plan.memory) : "does not fit in " + format_bytes(plan.memory);
  };
  std::string text = fmt::format(
      "model    {} parameters: {}\n"
      "device   {} {}\n"
      "needs    {} live, {} reserved ({} and {} bytes): {}\n",
      nn::format_count(static_cast<double>(first.run.parameters)), describe_model(first.options),
      format_bytes(plan.memory), whose_memory(plan), format_bytes(first.run.peak_live),
      format_bytes(first.run.peak_reserved), format_integer(first.run.peak_live),
      format_integer(first.run.peak_reserved), spare(first));
  std::vector<double> bytes;
  for (const Sample& sample : plan.picture.samples) bytes.push_back(static_cast<double>(sample.live));
  text += "a step   " + nn::sparkline(bytes, 72) + "\n\n";

  Table categories({"<category", "fullest moment", "own peak"});
  for (const Category category : stacking) {
    const auto index = static_cast<std::size_t>(category);
    if (first.run.peak_by_category[index] == 0) continue;
    categories.add({std::string(to_string(category)), format_bytes(plan.picture.fullest.requested[index]),
                    format_bytes(first.run.peak_by_category[index])});
  }
  text += categories.text() + "\n";
  text += "  holders of memory at the fullest moment\n" + holder_table(plan, 8).text();
  if (plan.rows.size() > 1 || plan.measure > 0) text += "\n" + row_table(plan).text() + measurement_notes(plan);
  if (!plan.devices.empty()) text += "\n" + longest_text(plan) + "\n" + device_table(plan).text();
  return text;
}

namespace {

Json run_json(const DryRun& run) {
  Json categories;
  for (std::size_t i = 0; i < category_count; ++i)
    categories[std::string(to_string(static_cast<Category>(i)))] = run.peak_by_category[i];
  return {{"parameters", run.parameters},
          {"peak_live_bytes", run.peak_live},
          {"peak_reserved_bytes", run.peak_reserved},
          {"bytes_by_category", categories}};
}

Json longest_json(std::size_t memory, const Longest& longest) {
  return {{"memory", memory},
          {"context", longest.context},
          {"peak_live_bytes", longest.run.peak_live},
          {"peak_reserved_bytes", longest.run.peak_reserved}};
}

}  // namespace

Json plan_json(const Plan& plan) {
  Json rows = Json::array();
  for (const PlanRow& row : plan.rows) {
    Json json = run_json(row.run);
    json["name"] = row.name();
    json["policy"] = row.policy;
    json["settings"] = row.options.configuration();
    json["fits"] = row.fits;
    json["refusal"] = row.fits ? Json(nullptr) : Json(row.refusal);
    json["simulated_step_seconds"] = row.run.step_seconds;
    json["relative_time"] = plan.relative_time(row) > 0 ? Json(plan.relative_time(row)) : Json(nullptr);
    if (row.measured && !is_measured(row)) json["measured"] = {{"failure", row.measured->failure}};
    if (is_measured(row))
      json["measured"] = {{"step_milliseconds", row.measured->milliseconds},
                          {"peak_live_bytes", row.measured->peak_live},
                          {"peak_reserved_bytes", row.measured->peak_reserved}};
    if (plan.longest) {
      json["longest"] = longest_json(plan.memory, row.longest);
      json["devices"] = Json::array();
      for (std::size_t d = 0; d < plan.devices.size(); ++d)
        json["devices"].push_back(longest_json(plan.devices[d].memory, row.devices[d]));
    }
    rows.push_back(std::move(json));
  }
  Json step{{"events", plan.picture.events}, {"backward", plan.picture.backward},
            {"update", plan.picture.update}, {"holders", plan.picture.holders},
            {"event", Json::array()},        {"live", Json::array()},
            {"reserved", Json::array()}};
  for (const Sample& sample : plan.picture.samples) {
    step["event"].push_back(sample.moment);
    step["live"].push_back(sample.live);
    step["reserved"].push_back(sample.reserved);
  }
  return {{"memory", plan.memory},
          {"device", plan.rows.front().options.device},
          {"threads", kernels::num_threads()},
          {"gemm", kernels::gemm_backend()},
          {"instruction_set", kernels::instruction_set()},
          {"rows", rows},
          {"step", step},
          {"seconds", plan.seconds}};
}

}  // namespace poolgrad::examples
