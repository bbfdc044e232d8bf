// The program `train` as users run it: in its own process, with an unused pool.
#pragma once

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/support/train.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {

/// Returns its report, or {"error": text of standard error}. `environment`: "POOLGRAD_THREADS=2".
inline nlohmann::json run_train_program(const TrainOptions& o, const testing_support::TemporaryFolder& folder,
                                        const std::string& environment = "") {
  const std::string json = folder.file("report.json"), errors = folder.file("errors");
  std::string line = environment + " " + POOLGRAD_TRAIN_PROGRAM + " --quiet --json=" + json;
  for (const std::string& argument : o.arguments()) line += " " + argument;
  for (const std::string& text : o.text) line += " --text=" + text;
  line += " --checkpoint=" + o.checkpoint + " --budget=" + o.budget + " --device=" + o.device +
          " --sample=" + std::to_string(o.sample) + " --report=" + std::to_string(o.report) + " 2>" + errors;
  if (std::system(line.c_str()) != 0) return {{"error", testing_support::read_bytes(errors)}};
  return nlohmann::json::parse(testing_support::read_bytes(json));
}

}  // namespace poolgrad::examples
