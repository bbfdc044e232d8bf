#include "examples/plan/plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>
#include <sstream>

#include "allocator/error.h"
#include "examples/lab/page.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t smallest_memory = std::size_t{1} << 20;

std::size_t parse_memory(const std::string& text, const char* option) {
  const std::size_t bytes = parse_bytes(text);
  if (bytes < smallest_memory || bytes > no_limit)
    throw ValueError(fmt::format("[plan] {} must be from {} to {}, but is {}", option, format_bytes(smallest_memory),
                                 format_bytes(no_limit), text));
  return bytes;
}

/// `options` with "name=value" as on a command line.
TrainOptions with_setting(TrainOptions options, const std::string& name, const std::string& value) {
  CLI::App app;
  add_training_options(app, options);
  try {
    std::vector<std::string> line{"--" + name + "=" + value};
    app.parse(line);
  } catch (const CLI::ParseError& error) {
    throw ValueError(fmt::format("[plan] --vary {}={}: {}", name, value, error.what()));
  }
  return options;
}

/// A row for each policy that goes with the other options.
std::vector<PlanRow> policy_rows(const TrainOptions& base) {
  std::vector<PlanRow> rows;
  for (const std::string& policy : memory_policies()) {
    PlanRow& row = rows.emplace_back();
    row.options = base;
    row.name = policy.empty() ? "all kept" : policy;
    std::istringstream words(policy);
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      row.options = with_setting(row.options, word.substr(0, equals), word.substr(equals + 1));
    }
  }
  return rows;
}

/// A row for each combination of values.
std::vector<PlanRow> rows_of(const PlanOptions& options) {
  if (options.policies && !options.vary.empty()) throw ValueError("[plan] --policies and --vary do not go together");
  if (options.policies) return policy_rows(options.train);
  std::vector<PlanRow> rows(1);
  rows[0].options = options.train;
  for (const std::string& vary : options.vary) {
    const std::size_t equals = vary.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == vary.size())
      throw ValueError("[plan] --vary must be NAME=VALUE,VALUE, but is " + vary);
    const std::string name = vary.substr(0, equals);
    std::vector<PlanRow> more;
    for (const PlanRow& row : rows)
      for (std::size_t begin = equals + 1; begin <= vary.size();) {
        const std::size_t end = std::min(vary.find(',', begin), vary.size());
        const std::string value = vary.substr(begin, end - begin);
        PlanRow& one = more.emplace_back(row);
        one.name += (row.name.empty() ? "" : ", ") + name + " " + value;
        one.options = with_setting(row.options, name, value);
        begin = end + 1;
      }
    rows = std::move(more);
  }
  return rows;
}

/// The first event of a scope that begins so, as a moment.
Moment begin_of(const Trace& trace, std::string_view scope) {
  for (std::size_t i = 0; i < trace.events.size(); ++i)
    if (trace.events[i].kind == TraceKind::allocate && trace.scopes[trace.events[i].scope].starts_with(scope))
      return static_cast<Moment>(i + 1);
  return 0;
}

StepPicture picture_of(const Trace& trace) {
  StepPicture picture;
  const History history = history_of(trace);
  picture.events = trace.events.size();
  picture.samples = samples_of(history, picture.events, 1200);
  picture.fullest = *std::ranges::max_element(picture.samples, {}, &Sample::requested_in_all);
  picture.backward = begin_of(trace, "backward");
  picture.update = begin_of(trace, "gradient_norm");
  picture.holders = page_tables({.trace = trace, .title = "", .source = "plan"}, history, picture.samples).peak;
  return picture;
}

}  // namespace

const std::vector<std::string>& memory_policies() {
  static const std::vector<std::string> policies{
      "", "checkpoint=block", "checkpoint=sqrt", "checkpoint=revolve", "checkpoint=block tile=1024", "chunk=4096"};
  return policies;
}

Plan make_plan(const PlanOptions& options, Progress& progress) {
  const Stopwatch watch;
  Plan plan;
  plan.memory = parse_memory(options.memory, "--memory");
  plan.longest = options.longest;
  plan.most = options.most;
  if (plan.most < 1) throw ValueError(fmt::format("[plan] --most must be at least 1, but is {}", plan.most));
  for (const std::string& device : options.devices) plan.devices.push_back({device, parse_memory(device, "--devices")});
  plan.rows = rows_of(options);
  for (PlanRow& row : plan.rows) {
    progress.status("planning " + (row.name.empty() ? describe_model(row.options) : row.name));
    row.run = dry_run(row.options, plan.memory);
    row.fits = row.run.fits;
    row.refusal = row.run.refusal;
    if (!row.fits) row.run = dry_run(row.options, no_limit);
    if (!row.run.fits) throw ValueError("[plan] needs more than any device has: " + describe_model(row.options));
    row.seconds = dry_run(row.options, row.fits ? plan.memory : no_limit, Through::steps).step_seconds;
    if (!options.longest) continue;
    progress.status("the longest context " + row.name);
    row.longest = longest_context(row.options, plan.memory, plan.most);
    for (const PlanDevice& device : plan.devices)
      row.devices.push_back(longest_context(row.options, device.memory, plan.most));
  }
  const PlanRow& first = plan.rows.front();
  plan.picture = picture_of(trace_of_step(first.options, first.fits ? plan.memory : no_limit));
  plan.seconds = watch.seconds();
  return plan;
}

std::string describe_model(const TrainOptions& o) {
  return fmt::format("{} layers, width {}, {} heads ({} for keys), context {}, {}, {}{}", o.layers, o.width, o.heads,
                     o.model().kv_heads, o.context, o.attention.describe(o.context), o.dtype,
                     o.batch > 1 ? fmt::format(", batch {}", o.batch) : "");
}

std::string plan_text(const Plan& plan) {
  const PlanRow& first = plan.rows.front();
  const auto spare = [&](const PlanRow& row) {
    return row.fits ? "fits in " + format_bytes(plan.memory) : "does not fit in " + format_bytes(plan.memory);
  };
  std::string text = fmt::format(
      "model    {} parameters: {}\n"
      "device   {} like this cpu: {} threads, products by {}, attention by {}\n"
      "needs    {} live, {} reserved ({} and {} bytes): {}\n",
      nn::format_count(static_cast<double>(first.run.parameters)), describe_model(first.options),
      format_bytes(plan.memory), kernels::num_threads(), kernels::gemm_backend(), kernels::instruction_set(),
      format_bytes(first.run.peak_live), format_bytes(first.run.peak_reserved), format_integer(first.run.peak_live),
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
  Table holders({"bytes", "share", "<category", "<scope"});
  for (std::size_t i = 0; i < plan.picture.holders.size() && i < 8; ++i) {
    const Json& holder = plan.picture.holders[i];
    holders.add({format_bytes(holder["bytes"].get<std::size_t>()), format_percent(holder["share"].get<double>()),
                 holder["category"].get<std::string>(), holder["scope"].get<std::string>()});
  }
  text += "  who holds memory at the fullest moment\n" + holders.text();

  if (plan.rows.size() > 1) {
    Table rows({"<", "live", "reserved", "<", "time of a step"});
    for (const PlanRow& row : plan.rows)
      rows.add({row.name, format_bytes(row.run.peak_live), format_bytes(row.run.peak_reserved), spare(row),
                fmt::format("{:.2f}x", row.seconds / first.seconds)});
    text += "\n" + rows.text();
  }
  if (!plan.longest) return text;
  const auto tokens = [&](const Longest& longest) {
    return (longest.context == plan.most ? "at least " : "") +
           format_integer(static_cast<std::uint64_t>(longest.context));
  };
  for (const PlanRow& row : plan.rows)
    text +=
        fmt::format("{}longest  {} tokens train in {}{}{}\n", &row == &first ? "\n" : "", tokens(row.longest),
                    format_bytes(plan.memory), row.name.empty() ? "" : ", " + row.name,
                    row.longest.context ? fmt::format(": {} bytes a token, peak {}",
                                                      format_integer(row.longest.run.peak_reserved /
                                                                     static_cast<std::uint64_t>(row.longest.context)),
                                                      format_bytes(row.longest.run.peak_reserved))
                                        : "");
  std::vector<std::string> head{"<device"};
  for (const PlanRow& row : plan.rows) head.push_back(row.name.empty() ? "longest context" : row.name);
  Table devices(head);
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    std::vector<std::string> cells{plan.devices[d].name};
    for (const PlanRow& row : plan.rows) cells.push_back(tokens(row.devices[d]));
    devices.add(cells);
  }
  return text + "\n" + devices.text();
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
    json["name"] = row.name;
    json["settings"] = row.options.configuration();
    json["fits"] = row.fits;
    json["refusal"] = row.fits ? Json(nullptr) : Json(row.refusal);
    json["simulated_step_seconds"] = row.seconds;
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
          {"threads", kernels::num_threads()},
          {"gemm", kernels::gemm_backend()},
          {"instruction_set", kernels::instruction_set()},
          {"rows", rows},
          {"step", step},
          {"seconds", plan.seconds}};
}

int parse_plan_options(int argc, const char* const* argv, PlanOptions& o) {
  CLI::App app("Says what a training run will need, to the byte, without running it.", "plan");
  app.option_defaults()->always_capture_default();
  app.add_option("--memory", o.memory, "Hard limit of the memory, such as 8GiB");
  app.add_flag("--longest", o.longest, "Find the longest context that trains in the memory, and on each device");
  app.add_option("--devices", o.devices, "Their memory, for --longest")->delimiter(',');
  app.add_option("--most", o.most, "Tokens beyond which no context is tried");
  app.add_option("--vary", o.vary, "NAME=VALUE,VALUE: plan each value of a training option, such as attention")
      ->take_all();
  app.add_flag("--policies", o.policies, "Plan each way to save memory: checkpoints, tiles, chunks");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  app.add_option("--html", o.html, "Page to write");
  app.add_flag("--quiet", o.quiet, "Print nothing but errors");
  add_training_options(app, o.train);
  const int code = parse_command_line(app, argc, argv);
  return code > 0 ? exit_usage : code;
}

void run_plan(const PlanOptions& options, std::ostream& out, bool live) {
  const bool prints = !options.quiet && options.json != "-";
  Progress progress(out, live && prints);
  const Plan plan = make_plan(options, progress);
  if (prints) progress.line(plan_text(plan));
  const auto write = [&](const std::string& path, const std::string& text) {
    if (path == "-")
      out << text << std::flush;
    else if (!path.empty())
      nn::write_text(path, text, "plan");
  };
  write(options.json, plan_json(plan).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  write(options.html, options.html.empty() ? "" : plan_html(plan));
}

}  // namespace poolgrad::examples
