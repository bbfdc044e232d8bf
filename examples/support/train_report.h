// Lines and files about a training run.
#pragma once

#include <string>

#include "examples/support/train_options.h"
#include "examples/support/train_result.h"

namespace poolgrad::examples {

/// Text, model and device, before the first step.
std::string describe_run(const TrainOptions& options, const TrainResult& result);
/// The line of a report interval, about the last step in `result`; `eta` in seconds.
std::string describe_step(const TrainOptions& options, const TrainResult& result, double eta);
/// The live line between reports.
std::string describe_status(const TrainOptions& options, const StepRecord& record, double eta);
/// The report at the end: loss curve, validation beside the baselines, sample, memory by category, files.
std::string describe_result(const TrainOptions& options, const TrainResult& result);

/// Throw FileError where the file cannot be written.
void write_json(const std::string& path, const TrainOptions& options, const TrainResult& result);
void write_csv(const std::string& path, const TrainResult& result);

}  // namespace poolgrad::examples
