// plan --ranks: a model of time and memory of a training step on several ranks. Messages, skipped work and memory are
// those of poolgrad's rings; times come from data sheets and a link, without measurement.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/plan/ring_time.h"
#include "examples/support/console.h"
#include "examples/support/train.h"

namespace poolgrad::examples {

inline constexpr std::int64_t most_planned_ranks = 128;

struct ScaleOptions {
  TrainOptions train;  // its context is the whole sequence; its device is one of scale_devices()
  std::int64_t ranks = 1;
  std::string link = "50GB/s,5us";
};

/// Parses "50GB/s,5us": bytes per second (see parse_bytes()), then ns, us, ms or s. Throws ValueError.
Link parse_link(const std::string& text);

/// A device's peaks from its data sheet.
struct DevicePeaks {
  std::string name;
  double terabytes_per_second = 0, half_teraflops = 0, single_teraflops = 0;
  std::string memory;  // "141GB"; empty: unknown
};
const std::vector<DevicePeaks>& scale_devices();

/// One way to split the work.
struct ScaleRow {
  std::string name;  // "ring, zigzag"
  std::size_t steps = 0;
  std::int64_t messages = 0, bytes_sent = 0;  // of all layers, forward and backward, and of parameter gradients
  attention::RingMemory memory = {};          // of one layer's attention
  PassTime forward = {}, backward = {}, reduction = {};  // of all layers' attention; of parameter gradients
  double step_seconds = 0;                               // of the whole step
};

struct Scale {
  TrainOptions train;
  std::int64_t ranks = 0;
  DevicePeaks device = {};
  Cluster cluster = {};
  DType dtype = DType::f32;  // of attention
  std::int64_t parameters = 0;
  std::uint64_t step_bytes = 0;     // live at the peak of a step over a rank's tokens, without ring slots
  double other_seconds = 0;         // of a step, without attention
  std::vector<ScaleRow> rows = {};  // rings, all-gather, data parallel
  double seconds = 0;               // duration of this computation

  std::int64_t tokens() const { return train.context / ranks; }
};

/// Throws ValueError, one sentence, for splits that are impossible and for invalid links and devices.
Scale make_scale(const ScaleOptions& options, Progress& progress);

std::string scale_text(const Scale& scale);
Json scale_json(const Scale& scale);
std::string scale_html(const Scale& scale);

}  // namespace poolgrad::examples
