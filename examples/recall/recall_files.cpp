// The JSON and CSV files of examples/recall.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "examples/recall/recall_report.h"
#include "examples/support/write_text.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

using Json = nlohmann::ordered_json;

Json configuration(const RecallOptions& o) {
  const RecallTask task = o.task();
  return {{"task", o.task_name},
          {"distance", task.distance},
          {"pairs", task.pairs},
          {"keys", task.keys},
          {"values", task.values},
          {"spacing", task.spacing},
          {"align", task.align},
          {"length", task.length()},
          {"chance", task.chance()},
          {"layers", o.layers},
          {"width", o.width},
          {"heads", o.heads},
          {"lr", o.lr},
          {"tokens", o.tokens},
          {"steps", o.steps},
          {"seconds", o.seconds},
          {"seed", o.seed},
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
          {"scores", scores},
          {"steps", steps}};
}

}  // namespace

void write_recall_json(const std::string& path, const RecallOptions& options,
                       const std::vector<RecallResult>& results) {
  Json contenders = Json::array();
  for (const RecallResult& result : results) contenders.push_back(contender(result));
  write_text(path, Json{{"config", configuration(options)}, {"results", contenders}}.dump(2) + "\n", "recall");
}

void write_recall_csv(const std::string& path, const std::vector<RecallResult>& results) {
  std::string text = "attention,step,distance,pairs,loss,accuracy,milliseconds\n";
  for (const RecallResult& r : results)
    for (const RecallRecord& s : r.records)
      text += fmt::format("{},{},{},{},{},{},{}\n", r.attention, s.step, s.distance, s.pairs, s.loss, s.accuracy,
                          s.milliseconds);
  write_text(path, text, "recall");
}

}  // namespace poolgrad::examples
