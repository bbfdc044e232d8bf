#include "examples/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <ostream>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/lab/page.h"
#include "examples/support/files.h"

namespace poolgrad::examples {

namespace {

constexpr std::size_t smallest_memory = std::size_t{1} << 20;
constexpr std::size_t samples_of_large_picture = 1200, samples_of_small_pictures = 90;

std::size_t parse_memory(const std::string& text, const char* option) {
  const std::size_t bytes = of_option(option, [&] { return parse_bytes(text); });
  if (bytes < smallest_memory || bytes > no_limit)
    throw ValueError(fmt::format("[plan] {} must be from {} to {}, but is {}", option, format_bytes(smallest_memory),
                                 format_bytes(no_limit), printable(text)));
  return bytes;
}

/// `options` with "name=value" applied as on a command line.
TrainOptions with_setting(TrainOptions options, const std::string& name, const std::string& value) {
  CLI::App app;
  add_training_options(app, options);
  try {
    std::vector<std::string> line{"--" + name + "=" + value};
    app.parse(line);
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> names;
    for (const CLI::Option* const option : app.get_options()) names.push_back(option->get_single_name());
    const std::string near = nearest(name, names);
    throw ValueError(fmt::format("[--vary] there is no training option {}{}", name,
                                 near.empty() ? "" : fmt::format(": did you mean {}?", near)));
  } catch (const CLI::ParseError& error) {
    throw ValueError(fmt::format("[plan] --vary {}={}: {}", printable(name), printable(value), error.what()));
  }
  return options;
}

/// Splits at semicolons if there are any, since lists of layers contain commas; else at commas.
std::vector<std::string> values_of(std::string_view text) {
  return split(text, text.find(';') == std::string_view::npos ? ',' : ';');
}

/// A row for each combination of values, and of policies.
std::vector<PlanRow> rows_of(const PlanOptions& options) {
  std::vector<PlanRow> rows(1);
  rows[0].options = options.train;
  if (options.measure > 0) {
    rows[0].options.steps = options.measure;
    rows[0].options.sample = 0;
  }
  for (const std::string& vary : options.vary) {
    const std::size_t equals = vary.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == vary.size())
      throw ValueError("[plan] --vary must be NAME=VALUE,VALUE, but is " + printable(vary));
    const std::string name = vary.substr(0, equals);
    std::vector<PlanRow> more;
    for (const PlanRow& row : rows)
      for (const std::string& value : values_of(vary.substr(equals + 1))) {
        PlanRow& one = more.emplace_back(row);
        one.group += (row.group.empty() ? "" : ", ") + name + " " + value;
        one.options = with_setting(row.options, name, value);
      }
    rows = std::move(more);
  }
  if (options.policies.empty()) return rows;
  std::vector<PlanRow> more;
  for (const PlanRow& row : rows) {
    const std::size_t reference = more.size();
    for (const std::string& policy : options.policies == "all" ? memory_policies() : split(options.policies, ',')) {
      PlanRow& one = more.emplace_back(row);
      one.policy = policy;
      one.reference = reference;
      one.options = with_policy(row.options, policy);
      TrainOptions checked = one.options;  // report errors before planning earlier rows
      checked.budget = "1GiB";
      checked.check();
    }
  }
  return more;
}

/// "8GiB", or "50%" of the bytes that `row` reserves without savings.
std::size_t memory_for(const std::string& text, const char* option, const PlanRow& row) {
  if (!text.ends_with('%')) return parse_memory(text, option);
  const auto percent = number_in<double>(std::string_view(text).substr(0, text.size() - 1));
  if (!percent || !(*percent > 0) || *percent > 1000)
    throw ValueError(
        fmt::format("[plan] a share of {} must be above 0 % and at most 1000 %, but is {}", option, printable(text)));
  const DryRun run = dry_run(with_policy(row.options, "none"), no_limit);
  const double bytes = *percent / 100 * static_cast<double>(run.peak_reserved);
  return std::clamp(static_cast<std::size_t>(bytes), smallest_memory, no_limit);
}

/// The moment of the first event in a scope with this prefix.
Moment begin_of(const Trace& trace, std::string_view scope) {
  for (std::size_t i = 0; i < trace.events.size(); ++i)
    if (trace.events[i].kind == TraceKind::allocate && trace.scopes[trace.events[i].scope].starts_with(scope))
      return static_cast<Moment>(i + 1);
  return 0;
}

/// Computes the simulated part of the plan.
void plan_row(PlanRow& row, Plan& plan, Progress& progress) {
  progress.status("planning " + (row.name().empty() ? describe_model(row.options) : row.name()));
  row.run = dry_run(row.options, plan.memory);
  row.fits = row.run.fits;
  row.refusal = row.run.refusal;
  if (!row.fits) row.run = dry_run(row.options, no_limit);
  if (!row.run.fits)
    throw ValueError("[plan] the run needs more memory than any device has: " + describe_model(row.options));
  const Trace trace = trace_of_step(row.options, row.fits ? plan.memory : no_limit);
  row.picture = picture_of(trace, samples_of_small_pictures);
  if (&row == &plan.rows.front()) plan.picture = picture_of(trace, samples_of_large_picture);
  if (!plan.longest) return;
  progress.status("the longest context " + row.name());
  ContextSearch search(row.options, plan.most);
  row.longest = search.in(plan.memory);
  for (const PlanDevice& device : plan.devices) row.devices.push_back(search.in(device.memory));
}

/// Trains every row for a few steps, one after another. The ETA uses the simulated times.
void measure_rows(Plan& plan, const std::string& program, Progress& progress) {
  const Stopwatch watch;
  double done = 0, all = 0;
  for (const PlanRow& row : plan.rows) all += row.run.step_seconds;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    PlanRow& row = plan.rows[i];
    progress.status(
        fmt::format("{} measuring {} of {}: {}{}", bar(done / all), i + 1, plan.rows.size(),
                    row.name().empty() ? describe_model(row.options) : row.name(),
                    done > 0 ? ", " + format_duration(watch.seconds() * (all - done) / done) + " left" : ""));
    TrainOptions options = row.options;
    if (options.checkpoint == "auto") options.checkpoint = "none";  // as planned
    options.context_warmup = "none";                                // the few steps have the whole context
    if (row.fits) options.budget = std::to_string(plan.memory);
    if (row.fits || options.checkpoint != "budget")
      row.measured = measure_run(program, options);
    else
      row.measured = MeasuredRun{.failure = "does not fit in " + format_bytes(plan.memory)};
    done += row.run.step_seconds;
  }
}

}  // namespace

StepPicture picture_of(const Trace& trace, std::size_t samples, bool by_time) {
  StepPicture picture;
  if (by_time)
    for (const TraceEvent& event : trace.events) picture.times.push_back(event.time);
  const History history = history_of(trace);
  picture.events = trace.events.size();
  picture.samples = samples_of(history, picture.events, samples);
  picture.fullest = *std::ranges::max_element(picture.samples, {}, &Sample::requested_in_all);
  picture.backward = begin_of(trace, "backward");
  picture.update = begin_of(trace, "gradient_norm");
  picture.holders = holders_of(trace, history, picture.fullest.moment, picture.fullest.requested_in_all());
  return picture;
}

const std::vector<std::string>& memory_policies() {
  static const std::vector<std::string> policies{
      "none",        "selective",           "block",     "sqrt", "revolve", "block+tile", "budget",
      "budget+tile", "budget+tile+offload", "none+chunk"};
  return policies;
}

TrainOptions with_policy(TrainOptions options, const std::string& policy) {
  constexpr std::int64_t positions = 1024;
  const std::int64_t tile = std::exchange(options.tile, 0), chunk = std::exchange(options.chunk, 0);
  const std::string folder = std::exchange(options.offload, "");
  const std::vector<std::string> parts = split(policy, '+');
  options.checkpoint = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (parts[i] == "tile")
      options.tile = tile ? tile : positions;
    else if (parts[i] == "chunk")
      options.chunk = chunk ? chunk : positions;
    else if (parts[i] == "offload")
      options.offload = folder.empty() ? std::filesystem::temp_directory_path().string() : folder;
    else
      throw ValueError(
          fmt::format("[plan] --policies: a suffix after + must be tile, chunk or offload, but is {} in {}",
                      printable(parts[i]), printable(policy)));
  return options;
}

Plan make_plan(const PlanOptions& options, Progress& progress) {
  const Stopwatch watch;
  Plan plan;
  if (options.measure < 0)
    throw ValueError(fmt::format("[plan] --measure must not be negative, but is {}", options.measure));
  if (options.train.device != "cpu" && options.train.device != "cuda")
    throw ValueError("[plan] --device must be cpu or cuda, but is " + printable(options.train.device));
  of_option("--context-warmup", [&] { options.train.warmup().check(options.train.context); });
  plan.measure = options.measure;
  plan.longest = options.longest || (plan.measure > 0 && !options.policies.empty());
  plan.most = options.most;
  check_at_least_one("plan", {{"most", plan.most}});
  for (const std::string& device : options.devices) {
    const std::size_t memory = parse_memory(device, "--devices");
    if (options.longest) plan.devices.push_back({device, memory});
  }
  plan.rows = rows_of(options);
  std::string program;
  if (plan.measure > 0) {
    program = options.program.empty() ? train_program() : options.program;
    if (!options.train.text.empty()) of_option("--text", [&] { return nn::read_corpus(options.train.text); });
  }
  const char* const usual = options.policies.empty() ? "8GiB" : "50%";
  plan.memory = memory_for(options.memory.empty() ? usual : options.memory, options.memory_option, plan.rows.front());
  for (PlanRow& row : plan.rows) plan_row(row, plan, progress);
  if (plan.measure > 0) measure_rows(plan, program, progress);
  plan.seconds = watch.seconds();
  return plan;
}

double Plan::relative_time(const PlanRow& row) const {
  const PlanRow& other = rows[row.reference];
  if (measure == 0) return row.run.step_seconds / other.run.step_seconds;
  const bool known = row.measured->failure.empty() && other.measured->failure.empty();
  return known ? row.measured->milliseconds / other.measured->milliseconds : 0.0;
}

namespace {

/// Every kind of attention in the rows of the plan.
std::vector<std::string> attention_kinds(const PlanOptions& o) {
  std::vector<std::string> kinds = kinds_of(o.train.layer_runs());
  for (const std::string& vary : o.vary) {
    const std::size_t value = vary.find('=') + 1;
    const auto varies = [&](std::string_view name) { return value > 0 && vary.substr(0, value - 1) == name; };
    for (const std::string& one : values_of(std::string_view(vary).substr(value)))
      if (varies("attention"))
        kinds.push_back(one);
      else if (varies("layers"))
        for (const LayerRun& run : LayerList(one).runs(o.train.attention)) kinds.push_back(run.attention.attention);
  }
  return kinds;
}

}  // namespace

int parse_plan_options(int argc, const char* const* argv, PlanOptions& o) {
  o.train.dtype = "auto";
  CLI::App app("Predicts the memory of a training run to the byte, without running it.", "./run plan");
  app.option_defaults()->always_capture_default();
  app.add_option("--memory", o.memory,
                 "Memory limit, such as 8GiB; or 50%, half of the bytes that the first row reserves without savings "
                 "(default: 8GiB; with --policies 50%)");
  std::string budget;
  app.add_option("--budget", budget,
                 "The --budget of the run: the limit of --memory, within which the run drops saved tensors unless "
                 "--checkpoint is given")
      ->excludes("--memory");
  app.add_option("--device", o.train.device, "Device to plan for: cpu, this machine; cuda, any GPU");
  app.add_flag("--longest", o.longest, "Find the longest context that trains in the memory, and on each device");
  app.add_option("--devices", o.devices, "Memory of further devices, for --longest")->delimiter(',');
  app.add_option("--most", o.most, "Longest context to try, in tokens");
  app.add_option("--vary", o.vary,
                 "NAME=VALUE,VALUE: plan each value of a training option, such as attention; semicolons separate lists "
                 "of layers")
      ->take_all();
  app.add_flag("--policies{all}", o.policies,
               fmt::format("Plan every memory policy, or those of --policies=none,block+tile: a policy of --checkpoint "
                           "with any of +tile, +chunk and +offload, as set by --tile, --chunk and --offload (all: {})",
                           fmt::join(memory_policies(), ",")));
  app.add_flag("--measure{5}", o.measure,
               "Also train each row for this many steps, in a separate process, and show step times and measured "
               "peaks; with --policies also the longest context of each, for window, dilated and causal attention "
               "unless --attention or --vary is given");
  app.add_option("--text", o.train.text, "Files or folders to train on, for --measure (default: Eigen's sources)");
  app.add_option("--json", o.json, "File to write as JSON; - for standard output");
  app.add_option("--html", o.html, "Page to write");
  app.add_option("--svg", o.svg, "Picture to write: the memory of a step of each row, on the same axes");
  app.add_flag("--quiet", o.quiet, "Print only errors");
  add_training_options(app, o.train);
  const int code = parse_command_line(app, argc, argv);
  if (!budget.empty()) {
    o.memory = budget;
    o.memory_option = "--budget";
    if (o.train.checkpoint == "auto") o.train.checkpoint = "budget";
  }
  if (o.measure > 0 && !o.policies.empty() && o.vary.empty() && app.count("--attention") == 0)
    o.vary = {"attention=window,dilated,causal"};
  check_one_source(o.train.layers, options_given(app));
  check_attention_options(options_given(app), attention_kinds(o));
  return code;
}

void run_plan(const PlanOptions& options, std::ostream& out, bool live) {
  const bool prints = !options.quiet && options.json != "-";
  Progress progress(out, live && prints);
  check_files(
      "plan",
      {{"--json", options.json, true}, {"--html", options.html, options.quiet}, {"--svg", options.svg, options.quiet}},
      text_files(options.train));
  for (const std::string& path : {options.json, options.html, options.svg}) nn::check_writable(path, "plan");
  const auto write = [&](const std::string& path, const std::string& text) {
    if (!path.empty()) nn::write_text(path, text, "plan", out);
  };
  const Plan plan = make_plan(options, progress);
  if (prints) progress.line(plan_text(plan));
  write(options.json, json_text(plan_json(plan)));
  write(options.svg, options.svg.empty() ? "" : rows_svg(plan, true));
  write(options.html, options.html.empty() ? "" : plan_html(plan));
}

}  // namespace poolgrad::examples
