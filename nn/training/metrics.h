// JSON as text, and a file that grows by one line at each report of a run.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nn/training/step.h"

namespace poolgrad::nn {

/// JSON with a line end, indented or (-1) on one line; replaces invalid UTF-8.
std::string json_text(const nlohmann::ordered_json& json, int indent = 2);

/// Lines with the fields of a step, the validation loss in nats per byte and the peak of live bytes: JSON objects in
/// PATH.jsonl, a table with a header in PATH.csv. Each line is written at once, so a run that is killed keeps it.
class MetricsFile {
 public:
  /// Throws ValueError for a path with another ending.
  static void check_name(const std::string& path);

  /// Begins the file anew for a run at step 0. Otherwise continues it after the line of step `steps_done`, and removes
  /// later and incomplete lines. "" is no file. Throws FileError, changing nothing, for a file that cannot be written
  /// or that has other lines.
  MetricsFile(const std::string& path, std::int64_t steps_done);
  /// Does not throw; check() does, so that a full disk does not end the run.
  void add(const StepRecord& step, double validation_loss, std::uint64_t peak_live_bytes);
  /// Throws FileError if a line could not be written.
  void check() const;

 private:
  std::string path_, failure_;
  bool is_json_ = false;
  std::ofstream out_;
};

}  // namespace poolgrad::nn
