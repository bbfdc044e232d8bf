// The texts of a run: its lines on a terminal, its last report, and the same as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nn/text/corpus.h"
#include "nn/training/step.h"

namespace poolgrad::nn {

class Trainer;
struct TrainResult;

/// JSON with a line end, indented or (-1) on one line; replaces invalid UTF-8.
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);
std::string json_report(const TrainResult& result, const nlohmann::ordered_json& config, const Corpus& corpus);
/// The line of a report interval, about the last step. `eta` is in seconds.
std::string describe_step(const Trainer& trainer, const TrainResult& result, double eta);
/// The live line between reports.
std::string describe_status(const StepRecord& step, std::int64_t steps, double eta);
/// The final report: loss curve, validation with baselines, sample, memory by category, files.
std::string describe_result(const TrainResult& result, const Trainer& trainer);

}  // namespace poolgrad::nn
