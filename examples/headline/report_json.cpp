#include "examples/headline/report.h"
#include "kernels/parallel.h"

namespace poolgrad::examples {

namespace {

Json number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json row_json(const Measured& measured) {
  const auto& [row, outcome] = measured;
  return {{"id", row->id},
          {"what", row->label},
          {"batch", row->batch},
          {"tokens", row->tokens},
          {"original",
           {{"milliseconds", number(row->theirs.milliseconds)},
            {"peak_bytes", number(row->theirs.bytes)},
            {"out_of_memory", row->theirs.out_of_memory}}},
          {"milliseconds", number(outcome.milliseconds)},
          {"calls", outcome.calls},
          {"operations", outcome.operations},
          {"tokens_at_once", outcome.tokens ? outcome.tokens : row->tokens},
          {"peak_bytes", number(outcome.peak_bytes)},
          {"reserved_bytes", number(outcome.reserved_bytes)},
          {"formula_bytes", outcome.formula_bytes},
          {"worst_error", number(outcome.worst_error)},
          {"simulated", outcome.simulated},
          {"remark", outcome.remark}};
}

}  // namespace

Json headline_json(const std::vector<MeasuredGroup>& groups, const Bench& bench, const std::string& machine) {
  Json all = Json::array();
  for (const MeasuredGroup& group : groups) {
    Json rows = Json::array();
    for (const Measured& measured : group.rows) rows.push_back(row_json(measured));
    all.push_back(
        {{"id", group.group->id}, {"title", group.group->title}, {"behind", group.group->behind}, {"rows", rows}});
  }
  return {{"machine", machine},
          {"device", to_string(bench.device)},
          {"dtype", std::string(to_string(bench.dtype))},
          {"threads", kernels::num_threads()},
          {"seed", bench.seed},
          {"groups", all}};
}

}  // namespace poolgrad::examples
