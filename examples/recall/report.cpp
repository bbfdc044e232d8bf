// Prints and writes the results.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "allocator/caching_allocator.h"
#include "examples/recall/recall.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

std::string steps_of(const RecallOptions& options, std::int64_t step) {
  return options.steps ? fmt::format("{:>{}}/{}", step, fmt::formatted_size("{}", options.steps), options.steps)
                       : fmt::format("{}", step);
}

Json configuration(const RecallOptions& o) {
  const nn::SequenceTask task = o.task();
  return {{"task", o.task_name},
          {"distance", task.distance},
          {"ask", std::max(o.distance, o.ask)},
          {"pairs", task.pairs},
          {"keys", task.keys},
          {"values", task.values},
          {"spacing", task.spacing},
          {"align", task.align},
          {"length", task.length()},
          {"chance", task.chance()},
          {"layers", o.layers.text()},
          {"width", o.width},
          {"heads", o.heads},
          {"lr", o.lr},
          {"tokens", o.tokens},
          {"steps", o.steps},
          {"seconds", o.seconds},
          {"seed", o.seed},
          {"device", o.device},
          {"threads", kernels::num_threads()}};
}

Json contender(const RecallResult& r) {
  Json scores = Json::array(), steps = Json::array();
  for (const RecallScore& s : r.scores)
    scores.push_back({{"distance", s.distance}, {"accuracy", s.accuracy()}, {"right", s.right}, {"asked", s.asked}});
  for (const RecallRecord& s : r.records)
    steps.push_back({{"step", s.step},
                     {"distance", s.distance},
                     {"pairs", s.pairs},
                     {"loss", s.loss},
                     {"accuracy", s.accuracy},
                     {"milliseconds", s.milliseconds}});
  return {{"attention", r.attention},
          {"pattern", r.pattern},
          {"parameters", r.parameters},
          {"learned", r.learned},
          {"interrupted", r.interrupted},
          {"tokens", r.tokens},
          {"seconds", r.seconds},
          {"processor_seconds", r.processor_seconds},
          {"peak_live_bytes", r.peak_bytes},
          {"error", r.error.empty() ? Json() : Json(r.error)},
          {"scores", scores},
          {"steps", steps}};
}

}  // namespace

std::string describe_task(const RecallOptions& o, Device device) {
  const nn::SequenceTask task = o.task();
  std::string budget;
  if (o.steps) budget = plural(o.steps, "step");
  if (o.seconds > 0) budget += fmt::format("{}{:g} s", budget.empty() ? "" : " or ", o.seconds);
  return fmt::format(
      "task     {}: {} stated, asked for at least {} tokens later, in sequences of {}; chance {:.1f} %\n"
      "model    width {}, {}\n"
      "budget   {} of {} tokens or one sequence\n"
      "device   {}, {}",
      o.task_name, plural(task.pairs, std::string(task.kind->unit)), task.distance, task.length(), 100 * task.chance(),
      o.width, plural(o.heads, "head"), budget, o.tokens, to_string(device), engines_of(device).to_string());
}

std::string describe_contender(const RecallOptions& o, const Contender& contender, const RecallResult& r) {
  std::string text =
      fmt::format("\n{:<8}  {}: {}, {} parameters", r.attention, plural(contender.layers.count(), "layer"), r.pattern,
                  format_count(static_cast<double>(r.parameters)));
  for (const LayerRun& run : o.layers_of(contender)) {
    if (run.attention.attention != "dilated") continue;
    const std::int64_t heads = run.heads(o.model(contender));
    const std::int64_t rate = std::ranges::max(run.attention.rates_for(o.longest()));
    if (heads < rate)
      text += fmt::format("\nnote     {0} take{3} {1} of the {2} phases of rate {2}; the other positions see less far",
                          plural(heads, "head"), heads, rate, heads == 1 ? "s" : "");
  }
  return text;
}

std::string describe_level(const RecallRecord& last, double accuracy, const nn::SequenceTask& next, double seconds) {
  return fmt::format("step {:>5}  distance {:>5}  recalled {:>5.1f} %  {}  next: {} at distance {}", last.step,
                     last.distance, 100 * std::max(accuracy, last.accuracy), format_duration(seconds),
                     plural(next.pairs, "pair"), next.distance);
}

std::string describe_step(const RecallOptions& o, const RecallResult& r, const nn::TaskCurriculum& curriculum,
                          double eta) {
  const RecallRecord& s = r.records.back();
  return fmt::format("step {}  distance {:>5}  recalled {:>5.1f} %  loss {:.3f}  {} ms/step  ETA at most {}",
                     steps_of(o, s.step), curriculum.current().distance, 100 * curriculum.accuracy(), s.loss,
                     nn::format_milliseconds(s.milliseconds), format_duration(eta));
}

std::string describe_end(const RecallResult& r) {
  const auto steps = static_cast<std::int64_t>(r.records.size());
  return fmt::format("{} after {}, {} tokens, {} ({} of processor time); peak {} live",
                     r.learned       ? "mastered"
                     : r.interrupted ? "stopped"
                                     : "ended",
                     plural(steps, "step"), format_count(static_cast<double>(r.tokens)), format_duration(r.seconds),
                     format_duration(r.processor_seconds), format_bytes(r.peak_bytes));
}

std::string describe_results(const RecallOptions& options, const std::vector<RecallResult>& results) {
  const double chance = options.task().chance();
  std::vector<const RecallResult*> scored;
  for (const RecallResult& r : results)
    if (r.error.empty()) scored.push_back(&r);
  if (scored.empty()) return "";
  const std::vector<RecallScore>& first = scored.front()->scores;
  std::vector<std::string> headers{"distance"};
  for (const RecallResult* r : scored) headers.push_back(r->attention);
  Table table(headers);
  for (std::size_t row = 0; row < first.size(); ++row) {
    std::vector<std::string> cells{std::to_string(first[row].distance)};
    for (const RecallResult* r : scored) cells.push_back(format_percent(r->scores[row].accuracy()));
    table.add(cells);
  }
  return fmt::format("\nright answers by distance (chance {:.1f} %, {} or more at each distance)\n\n{}", 100 * chance,
                     plural(options.questions, "question"), table.text());
}

Chart recall_chart(const RecallOptions& options, const std::vector<RecallResult>& results) {
  const auto percent = [](double y) { return fmt::format("{:.0f} %", y); };
  Chart chart{.x_name = "tokens from a value to its question",
              .series = {},
              .levels = {{"chance", 100 * options.task().chance()}},
              .log_x = true,
              .from_zero = true,
              .width = 760,
              .height = 300,
              .x_text = [](double x) { return format_integer(static_cast<std::uint64_t>(x)); },
              .y_text = percent};
  for (const RecallResult& r : results) {
    Points points;
    for (const RecallScore& s : r.scores) points.emplace_back(static_cast<double>(s.distance), 100 * s.accuracy());
    chart.series.push_back({r.attention, points, static_cast<int>(chart.series.size() % 6), Series::Kind::dots});
  }
  return chart;
}

Json recall_json(const RecallOptions& options, const std::vector<RecallResult>& results) {
  Json contenders = Json::array();
  for (const RecallResult& result : results) contenders.push_back(contender(result));
  return {{"config", configuration(options)}, {"results", contenders}};
}

}  // namespace poolgrad::examples
