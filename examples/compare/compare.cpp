#include "examples/compare/compare.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "allocator/base/number.h"
#include "allocator/base/printable.h"
#include "allocator/error.h"
#include "examples/support/chart.h"
#include "examples/support/console.h"
#include "examples/support/files.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

std::vector<Contender> CompareOptions::contenders() const {
  return contenders_of(train.layers, train.attention.attention, "compare");
}

TrainOptions CompareOptions::of(const Contender& contender) const {
  TrainOptions one = train;
  one.given.clear();  // also options of other kinds
  one.layers = contender.layers;
  one.attention.attention = contender.kind;
  return one;
}

double CompareOptions::seconds() const {
  const double seconds = parse_seconds(time).value_or(0);
  if (seconds > 0) return seconds;
  throw ValueError("[compare] --time must be a time such as 90s, 4min or 1h, but is " + printable(time));
}

RecallOptions CompareOptions::recall(const std::string& task) const {
  const std::vector<std::string> parts = split(task, ':');
  std::vector<std::int64_t> distances{256};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto number = number_in<std::int64_t>(parts[i]);
    if (!number || *number < 1 || i > 2)
      throw ValueError("[compare] --task must be NAME:DISTANCE:ASK, such as recall:256:1024, but is " +
                       printable(task));
    if (i == 1) distances.clear();
    distances.push_back(*number);
  }
  const bool has_steps = train.given.contains("steps");
  RecallOptions o;
  o.task_name = parts.front();
  o.distance = distances.front();
  o.ask = distances.size() > 1 ? distances.back() : 4 * distances.front();
  o.layers = train.layers;
  o.attention = train.attention;
  o.width = train.width;
  o.heads = train.heads;
  o.tokens = 2048;
  o.steps = has_steps ? train.steps : 0;
  o.seconds = has_steps ? 0 : seconds();
  o.seed = train.seed;
  o.device = train.device;
  o.quiet = quiet || json == "-" || csv == "-";
  if (train.lr > 0) o.lr = train.lr;
  return o;
}

void CompareOptions::check() const {
  const std::vector<Contender> all = contenders();
  check_one_source(train.layers, train.given);
  seconds();
  check_files("compare", {{"--json", json, true}, {"--csv", csv, true}, {"--html", html, quiet}}, text_files(train));
  for (const std::string& task : tasks) of_option("--task", [&] { recall(task).check(); });
  if (train.steps < 1) throw ValueError(fmt::format("[compare] --steps must be at least 1: {}", train.steps));
  std::vector<std::string> kinds;
  for (const Contender& contender : all)
    for (const std::string& kind : kinds_of(of(contender).layer_runs())) kinds.push_back(kind);
  check_attention_options(train.given, kinds);
  for (const Contender& contender : all) of(contender).check();
}

namespace {

/// A number of bytes with a unit; a bare number would be ambiguous.
bool is_size(const std::string& text) {
  try {
    parse_bytes(text);
    return text.find_first_not_of("0123456789. ") != std::string::npos;
  } catch (const ValueError&) {
    return false;
  }
}

/// Reads a budget with a unit of time as time and one with a unit of bytes as memory. Each may be given once, and time
/// not together with steps.
void take_budgets(const std::vector<std::string>& budgets, bool has_time, bool has_steps, CompareOptions& o) {
  for (const std::string& budget : budgets) {
    const bool is_time = parse_seconds(budget).value_or(0) > 0;
    if (!is_time && !is_size(budget))
      throw ValueError("[compare] --budget must be a time such as 4min or a size such as 512MiB, but is " +
                       printable(budget));
    if (is_time ? has_time : !o.train.budget.empty())
      throw ValueError(
          fmt::format("[compare] the budget of {} is given twice: --budget {}", is_time ? "time" : "memory", budget));
    (is_time ? o.time : o.train.budget) = budget;
    has_time |= is_time;
  }
  if (has_time && has_steps)
    throw ValueError("[compare] --steps and the time " + o.time + " both set the length of a run: give one of them");
}

}  // namespace

int parse_compare_options(int argc, const char* const* argv, CompareOptions& o) {
  o.train.attention.attention = "causal,window,dilated";
  o.train.dtype = "auto";
  CLI::App app("Trains the same model with several kinds of attention on the same text for the same time.",
               "./run compare");
  app.option_defaults()->always_capture_default();
  app.add_option("--text", o.train.text,
                 "Files or folders to read, or PATH=WEIGHT (default: the C++ sources of Eigen)");
  add_training_options(app, o.train);
  app.remove_option(app.get_option("--sample"));  // a comparison writes no sample
  app.get_option("--attention")->description("Kinds to compare, separated by commas: causal, window, dilated, ...");
  app.get_option("--layers")
      ->description(
          "Number of transformer blocks, or lists of layers to compare instead of kinds, separated by semicolons, such "
          "as \"2*window;window,causal+nope\"");
  app.get_option("--steps")->description("Steps to train each, instead of --time")->default_str("");
  auto* time = app.add_option("--time", o.time, "Time to train each, such as 90s, 4min or 1h");
  app.add_option("--task", o.tasks,
                 "Tasks of ./run recall to compare on, instead of a text or beside a given one: NAME or "
                 "NAME:DISTANCE:ASK, the longest distances in training and in the test, such as mqar,recall:256:4096")
      ->delimiter(',');
  app.add_option("--device", o.train.device, computing_device_help);
  std::vector<std::string> budgets;
  app.add_option("--budget", budgets,
                 "A time, such as 4min, like --time; or a size, such as 512MiB, the hard limit of the pool; or both, "
                 "separated by a comma")
      ->delimiter(',');
  app.add_option("--json", o.json, "JSON report to write; - for standard output, without any other text");
  app.add_option("--csv", o.csv,
                 "CSV file to write: the loss by position of each kind, and its right answers by distance; - as for "
                 "--json");
  app.add_option("--html", o.html, "HTML page to write, with curves over time, by position and by distance");
  app.add_flag("--quiet", o.quiet, "Print only errors");
  const int code = parse_command_line(app, argc, argv);
  const bool has_steps = app.get_option("--steps")->count() > 0;
  o.train.given = options_given(app);
  if (code < 0) take_budgets(budgets, time->count() > 0, has_steps, o);
  return code;
}

namespace {

/// The record with the median time.
nn::StepRecord median_step(std::vector<nn::StepRecord> steps) {
  if (steps.empty()) return {};
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, &nn::StepRecord::milliseconds);
  return *middle;
}

/// The median step time, measured on a temporary model.
double seconds_per_step(TrainOptions options) {
  options.context_warmup = "none";
  const PreparedRun run(options);
  run.trainer->step();  // warm-up
  std::vector<nn::StepRecord> steps;
  const Stopwatch all;
  while (steps.size() < 3 || (steps.size() < 15 && all.seconds() < 1.0)) steps.push_back(run.trainer->step());
  return 1e-3 * median_step(std::move(steps)).milliseconds;
}

/// Loss by context length, in bins that grow by a factor of eight.
std::vector<nn::PositionLoss> coarse(const std::vector<nn::PositionLoss>& fine) {
  std::vector<nn::PositionLoss> result;
  std::int64_t limit = 8;
  for (const nn::PositionLoss& part : fine) {
    if (result.empty() || part.first > limit) {
      while (!result.empty() && part.first > limit) limit *= 8;
      result.push_back({part.first, part.first - 1, 0});
    }
    nn::PositionLoss& share = result.back();
    const auto before = static_cast<double>(share.last - share.first + 1),
               more = static_cast<double>(part.last - part.first + 1);
    share.loss = (share.loss * before + part.loss * more) / (before + more);
    share.last = part.last;
  }
  return result;
}

/// A validated run if there is one: it has the data that all runs share.
const nn::TrainResult& judged(const std::vector<Compared>& all) {
  const auto one = std::ranges::find_if(all, [](const Compared& c) { return !c.result.by_position.empty(); });
  return (one == all.end() ? all.front() : *one).result;
}

std::vector<std::string> headers(const std::vector<Compared>& all) {
  std::vector<std::string> names{"<attention", "steps", "ms/step", "tok/s", "peak", "held out"};
  for (const nn::PositionLoss& share : coarse(judged(all).by_position))
    names.push_back(fmt::format("after {} to {}", share.first, share.last));
  return names;
}

std::vector<std::string> cells(const Compared& one, std::size_t columns) {
  const nn::TrainResult& r = one.result;
  const nn::StepRecord step = median_step(r.steps);
  const char* const end = !r.error.empty() ? " (failed)" : r.interrupted ? " (stopped)" : "";
  std::vector<std::string> row{one.pattern,
                               fmt::format("{}{}", r.steps.size(), end),
                               nn::format_milliseconds(step.milliseconds),
                               nn::format_count(step.tokens_per_second),
                               format_bytes(r.peak_live_bytes),
                               r.validation_bytes > 0 ? fmt::format("{:.4f}", r.validation_loss) : "-"};
  for (const nn::PositionLoss& share : coarse(r.by_position)) row.push_back(fmt::format("{:.3f}", share.loss));
  row.resize(columns);
  return row;
}

std::string table_of(const CompareOptions& options, const std::vector<Compared>& all) {
  const std::vector<std::string> names = headers(all);
  Table table(names);
  for (const Compared& one : all) table.add(cells(one, names.size()));
  const nn::Baselines& counted = judged(all).baselines;
  return table.text() + fmt::format(
                            "  ms/step and tok/s of the median step; nats per byte of validation text, also by {} of "
                            "context; unigram {:.4f}, bigram {:.4f}, trigram {:.4f}",
                            unit_of(options.train.tokenizer), counted.unigram, counted.bigram, counted.trigram);
}

/// The settings common to all runs.
std::map<std::string, std::string> common_configuration(const CompareOptions& options) {
  auto common = options.of(options.contenders().front()).configuration();
  common.erase("attention");
  if (!options.train.layers.is_number()) common.erase("layers");
  return common;
}

Json json_of(const CompareOptions& options, const CompareResult& comparison) {
  const std::vector<Compared>& all = comparison.kinds;
  Json report{{"config", common_configuration(options)}, {"kinds", Json::array()}, {"tasks", Json::array()}};
  if (!options.train.given.contains("steps")) report["config"]["time"] = options.time;
  for (const ComparedTask& task : comparison.tasks) report["tasks"].push_back(recall_json(task.options, task.results));
  if (all.empty()) return report;
  const nn::Baselines& counted = judged(all).baselines;
  report["baselines"] = {{"unigram", counted.unigram}, {"bigram", counted.bigram}, {"trigram", counted.trigram}};
  for (const Compared& one : all) {
    const nn::TrainResult& r = one.result;
    const nn::StepRecord step = median_step(r.steps);
    Json positions = Json::array();
    for (const nn::PositionLoss& part : r.by_position)
      positions.push_back({{"first", part.first}, {"last", part.last}, {"loss", part.loss}});
    report["kinds"].push_back({{"attention", one.kind},
                               {"pattern", one.pattern},
                               {"steps", r.steps.size()},
                               {"interrupted", r.interrupted},
                               {"error", r.error.empty() ? Json() : Json(r.error)},
                               {"milliseconds_per_step", step.milliseconds},
                               {"tokens_per_second", step.tokens_per_second},
                               {"peak_live_bytes", r.peak_live_bytes},
                               {"peak_reserved_bytes", r.peak_reserved_bytes},
                               {"validation_loss", r.validation_loss},
                               {"loss_by_position", positions}});
  }
  return report;
}

/// Tidy: a row for each number. A loss is that of tokens with at most `distance` tokens of context.
std::string csv_of_results(const CompareResult& comparison) {
  std::string text = "measure,attention,distance,value\n";
  for (const Compared& one : comparison.kinds)
    for (const nn::PositionLoss& part : one.result.by_position)
      text += fmt::format("loss,{},{},{}\n", csv_cell(one.kind), part.last, part.loss);
  for (const ComparedTask& task : comparison.tasks)
    for (const RecallResult& result : task.results)
      for (const RecallScore& score : result.scores)
        text += fmt::format("{},{},{},{}\n", task.options.task_name, csv_cell(result.attention), score.distance,
                            score.accuracy());
  return text;
}

std::string section(const std::string& title, const Chart& chart) {
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", title, chart_svg(chart));
}

std::string charts_of_text(const CompareOptions& options, const std::vector<Compared>& all) {
  const auto loss = [](double y) { return fmt::format("{:.2f}", y); };
  Chart over_time{.x_name = "seconds of training", .series = {}, .height = 280, .y_text = loss};
  Chart by_position{.x_name = fmt::format("{} of context", unit_of(options.train.tokenizer)),
                    .series = {},
                    .log_x = true,
                    .height = 280,
                    .y_text = loss};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const nn::TrainResult& r = all[i].result;
    const int colour = static_cast<int>(i % 6);
    Points validation;
    double seconds = 0;
    std::size_t next = 0;
    for (const nn::StepRecord& step : r.steps) {
      seconds += 1e-3 * step.milliseconds;
      for (; next < r.validations.size() && r.validations[next].first <= step.step; ++next)
        validation.emplace_back(seconds, r.validations[next].second);
    }
    over_time.series.push_back({all[i].kind, validation, colour});
    Points positions;
    for (const nn::PositionLoss& part : r.by_position)
      positions.emplace_back(std::sqrt(static_cast<double>(part.first) * static_cast<double>(part.last)), part.loss);
    by_position.series.push_back({all[i].kind, positions, colour, Series::Kind::dots});
  }
  const nn::Baselines& counted = judged(all).baselines;
  over_time.levels = {{"bigram", counted.bigram}, {"trigram", counted.trigram}};
  return section("Validation loss over time", over_time) + section("Does more context help?", by_position);
}

/// The table of the text, and one of the losses by position, for narrow windows.
std::pair<std::string, std::string> tables_of_text(const CompareOptions& options, const std::vector<Compared>& all) {
  constexpr std::size_t common = 6;
  std::vector<std::string> names = headers(all);
  names.front() = "attention";
  std::string rows, rows_by_context;
  for (const Compared& one : all) {
    std::vector<std::string> row = cells(one, names.size());
    for (std::string& cell : row) cell = escaped(cell);
    std::vector<std::string> by_context(row.begin() + common, row.end());
    by_context.insert(by_context.begin(), escaped(one.kind));
    rows_by_context += html_row(by_context);
    row.resize(common);
    row.front() = fmt::format("{}<small>{}</small>", by_context.front(), row.front());
    rows += html_row(row);
  }
  std::string by_context;
  if (names.size() > common) {
    std::vector<std::string> positions(names.begin() + common, names.end());
    positions.insert(positions.begin(), "attention");
    by_context = fmt::format("<h2>Validation loss by context</h2>\n<p>Nats per byte, by {} of context.</p>\n",
                             unit_of(options.train.tokenizer)) +
                 html_table(positions, rows_by_context);
  }
  names.resize(common);
  return {html_table(names, rows) +
              "<p>ms/step and tok/s of the median step; nats per byte of all validation "
              "text.</p>\n",
          by_context};
}

std::string table_of_task(const ComparedTask& task) {
  std::vector<std::string> names{"attention"};
  std::string rows;
  for (const RecallResult& result : task.results) {
    std::vector<std::string> row{
        fmt::format("{}<small>{}</small>", escaped(result.attention), escaped(result.pattern))};
    if (names.size() == 1)
      for (const RecallScore& score : result.scores) names.push_back(std::to_string(score.distance));
    for (const RecallScore& score : result.scores) row.push_back(format_percent(score.accuracy()));
    row.resize(std::max(row.size(), names.size()));
    rows += html_row(row);
  }
  const nn::SequenceTask size = task.options.task();
  return fmt::format(
             "<h2>{}: right answers by distance</h2>\n<p>{} in a sequence, trained at distances up to {}; chance "
             "{}.</p>\n",
             task.options.task_name, plural(size.pairs, size.kind->unit), size.distance,
             format_percent(size.chance())) +
         html_table(names, rows);
}

std::string page_of(const CompareOptions& options, const CompareResult& comparison) {
  const std::vector<Compared>& all = comparison.kinds;
  std::string charts, tables, errors, settings;
  const auto note = [&](const std::string& kind, const std::string& error) {
    if (!error.empty()) errors += fmt::format("<p>{}: {}</p>\n", escaped(kind), escaped(nn::first_line(error)));
  };
  for (const Compared& one : all) note(one.kind, one.result.error);
  for (const ComparedTask& task : comparison.tasks) {
    for (const RecallResult& result : task.results) note(result.attention, result.error);
    Chart chart = recall_chart(task.options, task.results);
    chart.width = 440, chart.height = 280;
    charts += section(task.options.task_name + ": right answers", chart);
    tables += table_of_task(task);
  }
  std::string first;
  if (!all.empty()) {
    const auto [of_kinds, by_context] = tables_of_text(options, all);
    first = of_kinds;
    charts = charts_of_text(options, all) + charts;
    tables = by_context + tables;
  }
  for (const auto& [name, value] : common_configuration(options)) settings += html_row({escaped(name), escaped(value)});
  return html_page("poolgrad: kinds of attention", "",
                   "<h1>Kinds of attention</h1>\n" + first + errors + "<div class=\"charts\">\n" + charts + "</div>\n" +
                       tables + "<h2>All options</h2>\n" + html_table({"option", "value"}, settings));
}

/// Trains each kind on the text.
std::vector<Compared> compare_on_text(const CompareOptions& options, Device device, std::ostream& out,
                                      Progress& progress, bool prints) {
  const std::vector<Contender> contenders = options.contenders();
  TrainOptions base = options.of(contenders.front());
  const double seconds = options.seconds();
  base.corpus = std::make_shared<const nn::Corpus>(
      read_text(base, [&](const std::string& what, double done) { progress.status(nn::bar(done) + " " + what); }));
  std::vector<Compared> all;
  for (std::size_t i = 0; i < contenders.size() && !InterruptGuard::interrupted(); ++i) {
    TrainOptions one = options.of(contenders[i]);
    one.corpus = base.corpus;
    one.device = to_string(device);
    one.sample = 0;
    one.save_unasked = false;
    Compared found{.kind = contenders[i].name, .pattern = one.describe_attention()};
    progress.status(fmt::format("{} of {}: {}", i + 1, contenders.size(), found.pattern));
    one.quiet = true;
    one.reported = [&](nn::Trainer&, nn::TrainResult& result, bool finished) {  // also of a run that fails
      if (finished) found.result = result;
    };
    try {
      if (!options.train.given.contains("steps"))
        one.steps = std::max<std::int64_t>(1, std::llround(seconds / seconds_per_step(one)));
      found.steps = one.steps;
      one.report = std::max<std::int64_t>(1, one.steps / 20);
      if (prints)
        progress.line(
            fmt::format("{} of {}: {}, {}", i + 1, contenders.size(), found.pattern, plural(one.steps, "step")));
      train(one, out);
      if (prints)
        progress.line(fmt::format("  held out {:.4f} nats per byte after {}", found.result.validation_loss,
                                  format_duration(found.result.seconds)));
    } catch (const Error& error) {  // continue with the other contenders
      found.result.error = error.what();
      if (prints) progress.line("  failed: " + nn::first_line(found.result.error));
    }
    all.push_back(std::move(found));
  }
  return all;
}

}  // namespace

CompareResult run_compare(const CompareOptions& options, std::ostream& out, bool live) {
  options.check();
  for (const std::string& path : {options.json, options.csv, options.html}) nn::check_writable(path, "compare");
  const Device device = parse_device(options.train.device, "compare", "nothing is learned");
  const InterruptGuard interrupts;  // also between two runs
  const bool prints = !options.quiet && options.json != "-" && options.csv != "-";
  CompareResult comparison;
  if (options.tasks.empty() || !options.train.text.empty()) {
    Progress progress(out, live && prints);
    comparison.kinds = compare_on_text(options, device, out, progress, prints);
    if (prints && !comparison.kinds.empty()) progress.line("\n" + table_of(options, comparison.kinds));
  }
  for (const std::string& task : options.tasks) {
    if (InterruptGuard::interrupted()) break;
    RecallOptions recall = options.recall(task);
    recall.device = to_string(device);
    if (prints) out << "\n";
    comparison.tasks.push_back({recall, train_and_ask(recall, device, out, live)});
  }
  if (comparison.kinds.empty() && comparison.tasks.empty()) return comparison;
  if (!options.json.empty()) write_text(options.json, json_text(json_of(options, comparison)), "compare", out);
  if (!options.csv.empty()) write_text(options.csv, csv_of_results(comparison), "compare", out);
  if (!options.html.empty()) write_text(options.html, page_of(options, comparison), "compare", out);
  return comparison;
}

void check_ended(const CompareResult& comparison) {
  std::string failed;
  const auto add = [&](const std::string& kind, const std::string& error) {
    if (!error.empty())
      failed += fmt::format("{}[compare] {} failed: {}", failed.empty() ? "" : "\n", kind, nn::first_line(error));
  };
  for (const Compared& one : comparison.kinds) add(one.kind, one.result.error);
  for (const ComparedTask& task : comparison.tasks)
    for (const RecallResult& result : task.results) add(result.attention, result.error);
  if (!failed.empty()) throw Error(failed);
}

}  // namespace poolgrad::examples
