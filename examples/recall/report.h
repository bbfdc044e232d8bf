// Lines and files about what was recalled.
#pragma once

#include <string>
#include <vector>

#include "examples/recall/recall.h"

namespace poolgrad::examples {

/// Task, model and budget, before anything is trained.
std::string describe_task(const RecallOptions& options);
/// Its pattern, and a note where the heads are too few to take every phase of a dilated branch.
std::string describe_contender(const RecallOptions& options, const RecallResult& result);
/// A level ended with `accuracy`, and `next` begins.
std::string describe_level(const RecallRecord& last, double accuracy, const RecallTask& next, double seconds);
/// About the last step; `eta` in seconds.
std::string describe_step(const RecallOptions& options, const RecallResult& result, const RecallCurriculum& curriculum,
                          double eta);
/// The live line between them.
std::string describe_status(const RecallOptions& options, const RecallResult& result,
                            const RecallCurriculum& curriculum, double used, double eta);
/// How the training ended.
std::string describe_end(const RecallResult& result);
/// Accuracy by distance, as a table and as bars.
std::string describe_results(const RecallOptions& options, const std::vector<RecallResult>& results);

/// Throw FileError where the file cannot be written.
void write_recall_json(const std::string& path, const RecallOptions& options, const std::vector<RecallResult>& results);
void write_recall_csv(const std::string& path, const std::vector<RecallResult>& results);

}  // namespace poolgrad::examples
