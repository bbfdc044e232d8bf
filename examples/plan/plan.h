// examples/plan: options, results and output.
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
  TrainOptions train;                      // measured runs read its text
  std::string memory;                      // "8GiB", or "50%" of the first row's reserved bytes without savings
  const char* memory_option = "--memory";  // the option that messages about `memory` name
  std::vector<std::string> vary;  // "attention=causal,window": a row for each value; several: for each combination
  std::string policies;           // "none,block+tile": each row with each policy, see with_policy(); or "all"
  std::int64_t measure = 0;       // steps to train each row for, on the CPU; 0: no training
  bool longest = false;
  std::vector<std::string> devices = {"8GB", "16GB", "24GB", "40GB", "80GB", "141GB"};
  std::int64_t most = std::int64_t{1} << 24;  // tokens: the longest context to try
  std::string json, html, svg;
  std::string program;  // path of train; empty: train_program()
  bool quiet = false;
};

/// The policies of --policies all.
const std::vector<std::string>& memory_policies();
/// `options` with a memory policy: a policy of --checkpoint, followed by any of "+tile", "+chunk" and "+offload". Their
/// values come from the options, or are 1024 positions and the folder for temporary files. Throws ValueError.
TrainOptions with_policy(TrainOptions options, const std::string& policy);

/// The bytes of a step over the moments of its trace.
struct StepPicture {
  std::vector<Sample> samples;
  std::vector<std::uint64_t> times = {};  // of events, in nanoseconds: drawn by time; none: by number
  Sample fullest;
  Moment backward = 0, update = 0;  // their starts; 0: none
  std::size_t events = 0;
  Json holders;  // of the fullest moment, see holders_of()
};

/// The picture of a step's trace, with at most `samples` moments. `by_time` needs a device with a clock.
StepPicture picture_of(const Trace& trace, std::size_t samples, bool by_time = false);

/// One training setup.
struct PlanRow {
  std::string group;          // "attention window"; "" without --vary
  std::string policy;         // "block+tile"; "" without --policies
  std::size_t reference = 0;  // the row with relative time 1
  TrainOptions options;
  DryRun run;           // within the memory, or without limit if that does not fit
  bool fits = false;    // in the memory
  std::string refusal;  // why it does not fit
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
  StepPicture picture;  // of the first row
  double seconds = 0;   // duration of planning and measuring

  /// Step time divided by that of the row's reference: measured if both were, else simulated. 0: unknown, also if the
  /// row's measurement failed.
  double relative_time(const PlanRow& row) const;
};

/// Throws ValueError, one sentence, for options that cannot be planned.
Plan make_plan(const PlanOptions& options, Progress& progress);

/// "6 layers, width 512, 8 heads (2 for keys), context 4096, window of 256, bf16".
std::string describe_model(const TrainOptions& options);
/// "of a GPU", or "like this cpu: 2 threads, ...".
std::string whose_memory(const Plan& plan);
/// The time of a step, relative to that of the row's reference; "-" if unknown.
std::string time_text(const Plan& plan, const PlanRow& row);

/// A line for each row, under its group's name.
Table row_table(const Plan& plan);
/// The reasons for missing measurements, and the meaning of the others.
std::string measurement_notes(const Plan& plan);
/// The largest holders of memory at the fullest moment.
Table holder_table(const Plan& plan, std::size_t most);
/// The longest context of each row in the memory.
std::string longest_text(const Plan& plan);
/// The longest context of each row on each device.
Table device_table(const Plan& plan);

std::string plan_text(const Plan& plan);
Json plan_json(const Plan& plan);
/// One self-contained file, light or dark by the reader's preference.
std::string plan_html(const Plan& plan);

/// One step, with a line at `limit` if that is near; no_limit: none.
std::string step_svg(const StepPicture& picture, std::size_t limit, double width = 1100, double height = 340);
/// Bytes by category at the fullest moment, beside the categories' peaks.
std::string category_table(const StepPicture& picture, const std::array<std::uint64_t, category_count>& peaks);
/// The steps of all rows, small, on common axes; `alone`: an SVG file.
std::string rows_svg(const Plan& plan, bool alone);

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1.
int parse_plan_options(int argc, const char* const* argv, PlanOptions& options);
void run_plan(const PlanOptions& options, std::ostream& out, bool live = false);

}  // namespace poolgrad::examples
