// examples/plan: what it can be told, what it finds, how that is shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/lab/history.h"
#include "examples/plan/dry_run.h"
#include "examples/plan/measured_run.h"
#include "examples/support/console.h"

namespace poolgrad::examples {

struct PlanOptions {
  TrainOptions train;             // its text: what is measured reads it
  std::string memory;             // "8GiB", or "50%" of what the first row's model reserves with everything kept
  std::vector<std::string> vary;  // "attention=causal,window": a row for each value; several: for each combination
  std::string policies;           // "none,block+tile": each row in each way to save memory, see with_policy(); or "all"
  std::int64_t measure = 0;       // steps that each row is really trained for, on the CPU; 0: nothing is trained
  bool longest = false;
  std::vector<std::string> devices = {"8GB", "16GB", "24GB", "40GB", "80GB", "141GB"};
  std::int64_t most = std::int64_t{1} << 24;  // tokens: no longer context is tried
  std::string json, html, svg;
  std::string program;              // train; empty: train_program()
  std::int64_t ranks = 0;           // a plan for so many, see scale.h, which has neither of the above; 0: none
  std::string link = "50GB/s,5us";  // between them
  bool quiet = false;
};

/// What --policies stands for.
const std::vector<std::string>& memory_policies();
/// `options` with one way to save memory: a policy of --checkpoint, followed by any of "+tile", "+chunk" and
/// "+offload". What these need is taken from the options, or is 1024 positions and the folder for temporary files.
/// Throws ValueError.
TrainOptions with_policy(TrainOptions options, const std::string& policy);

/// Where the bytes of a step go, by moments of its trace.
struct StepPicture {
  std::vector<Sample> samples;
  std::vector<std::uint64_t> times = {};  // of the events, in nanoseconds: drawn by time; none: by number
  Sample fullest;
  Moment backward = 0, update = 0;  // where they begin; 0: nowhere
  std::size_t events = 0;
  Json holders;  // of the fullest moment, see PageTables::peak
};

/// Of the trace of a step, at no more than `samples` moments. `by_time` needs a device that takes time.
StepPicture picture_of(const Trace& trace, std::size_t samples, bool by_time = false);

/// One way to train.
struct PlanRow {
  std::string group;          // "attention window"; "" where nothing is varied
  std::string policy;         // "block+tile"; "" where none is asked for
  std::size_t reference = 0;  // the row whose time is 1
  TrainOptions options;
  DryRun run;           // within the memory, or, where that does not suffice, without limit
  bool fits = false;    // in the memory
  std::string refusal;  // why not
  double seconds = 0;   // of a step, by the simulated device's clock
  std::optional<MeasuredRun> measured;
  Longest longest;  // in the memory
  std::vector<Longest> devices;
  StepPicture picture;  // coarse

  std::string name() const { return group + (group.empty() || policy.empty() ? "" : ", ") + policy; }
};

struct PlanDevice {
  std::string name;  // "8GB"
  std::size_t memory = 0;
};

struct Plan {
  std::size_t memory = 0;
  bool longest = false;
  std::int64_t measure = 0;  // steps
  std::int64_t most = 0;
  std::vector<PlanDevice> devices;  // none: no table of them
  std::vector<PlanRow> rows;
  StepPicture picture;  // of the first
  double seconds = 0;   // that planning and measuring took

  /// Time of a step over that of the row's reference: measured where both were, else simulated; 0: unknown, as where
  /// the row was to be measured and was not.
  double relative_time(const PlanRow& row) const;
};

/// Throws ValueError, one sentence, for what cannot be planned.
Plan make_plan(const PlanOptions& options, Progress& progress);

/// "6 layers, width 512, 8 heads (2 for keys), context 4096, window of 256, bf16".
std::string describe_model(const TrainOptions& options);
/// "of a GPU", or "like this cpu: 2 threads, ...".
std::string whose_memory(const Plan& plan);
std::string plan_text(const Plan& plan);
/// Cells of the table of rows; "-" for what is not known.
std::string time_text(const Plan& plan, const PlanRow& row);
std::string milliseconds_text(const PlanRow& row);
std::string agreement_text(const PlanRow& row);  // whether the peaks measured are those planned
std::string tokens_text(const Plan& plan, const Longest& longest);
Json plan_json(const Plan& plan);
/// One file that refers to nothing outside itself; light or dark as the reader prefers.
std::string plan_html(const Plan& plan);

/// Colours and lines of the pictures.
std::string_view picture_style();
/// One step, with a line at `limit` where that is near; no_limit: none.
std::string step_svg(const StepPicture& picture, std::size_t limit, double width = 1100, double height = 340);
/// The bytes of its fullest moment by category, beside their peaks.
std::string category_table(const StepPicture& picture, const std::array<std::uint64_t, category_count>& peaks);
/// The steps of all rows, small, on the same axes; `alone`: an SVG file, with a picture_style() of its own.
std::string rows_svg(const Plan& plan, bool alone);

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_plan_options(int argc, const char* const* argv, PlanOptions& options);
void run_plan(const PlanOptions& options, std::ostream& out, bool live = false);

}  // namespace poolgrad::examples
