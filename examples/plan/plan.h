// examples/plan: what it can be told, what it finds, how that is shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/lab/history.h"
#include "examples/plan/dry_run.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

struct PlanOptions {
  TrainOptions train;
  std::string memory = "8GiB";
  std::vector<std::string> vary;  // "attention=causal,window": a row for each value; several: for each combination
  bool policies = false;          // a row for each way to save memory, see memory_policies()
  bool longest = false;
  std::vector<std::string> devices = {"8GB", "16GB", "24GB", "40GB", "80GB", "141GB"};
  std::int64_t most = std::int64_t{1} << 24;  // tokens: no longer context is tried
  std::string json, html;
  bool quiet = false;
};

/// Ways to save memory as training options, "checkpoint=block tile=1024", the empty one first.
const std::vector<std::string>& memory_policies();

/// One way to train.
struct PlanRow {
  std::string name;  // "attention window"; "" where nothing is varied
  TrainOptions options;
  DryRun run;           // within the memory, or, where that does not suffice, without limit
  bool fits = false;    // in the memory
  std::string refusal;  // why not
  double seconds = 0;   // of a step, by the simulated device's clock
  Longest longest;      // in the memory
  std::vector<Longest> devices;
};

/// Where the bytes of a step go, by moments of its trace.
struct StepPicture {
  std::vector<Sample> samples;
  Sample fullest;
  Moment backward = 0, update = 0;  // where they begin; 0: nowhere
  std::size_t events = 0;
  Json holders;  // of the fullest moment, see PageTables::peak
};

struct PlanDevice {
  std::string name;  // "8GB"
  std::size_t memory = 0;
};

struct Plan {
  std::size_t memory = 0;
  bool longest = false;
  std::int64_t most = 0;
  std::vector<PlanDevice> devices;
  std::vector<PlanRow> rows;  // the first is drawn
  StepPicture picture;
  double seconds = 0;  // that planning took
};

/// Throws ValueError, one sentence, for what cannot be planned.
Plan make_plan(const PlanOptions& options, Progress& progress);

/// "6 layers, width 512, 8 heads (2 for keys), context 4096, window of 256, bf16".
std::string describe_model(const TrainOptions& options);
std::string plan_text(const Plan& plan);
Json plan_json(const Plan& plan);
/// One file that refers to nothing outside itself; light or dark as the reader prefers.
std::string plan_html(const Plan& plan);

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_plan_options(int argc, const char* const* argv, PlanOptions& options);
void run_plan(const PlanOptions& options, std::ostream& out, bool live = false);

}  // namespace poolgrad::examples
