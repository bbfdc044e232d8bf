// Compares kinds of attention on one text and on tasks of recall, with one model and time budget: loss, speed, memory
// and right answers by distance.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/recall/recall.h"
#include "examples/support/train.h"

namespace poolgrad::examples {

struct CompareOptions {
  TrainOptions train;              // `layers` or `attention` lists several: contenders_of()
  std::string time = "4min";       // training time of each; ignored if steps are given
  std::vector<std::string> tasks;  // NAME[:DISTANCE[:ASK]]; with tasks, the text is compared only if it is given
  std::string json, html, csv;
  bool quiet = false;

  /// Throws ValueError, one sentence.
  void check() const;
  std::vector<Contender> contenders() const;
  /// The training options of one contender.
  TrainOptions of(const Contender& contender) const;
  /// The options of ./run recall for one of `tasks`: the layers, width, heads, seed, device and budget of the
  /// comparison, 2,048 tokens a step. The distance is 256 and the longest question four times as far, unless given.
  /// Throws ValueError.
  RecallOptions recall(const std::string& task) const;
  /// `time` as a number, above 0. Throws ValueError.
  double seconds() const;
};

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1. Throws
/// ValueError, one sentence, for a --budget that is neither time nor memory, or that gives either twice.
int parse_compare_options(int argc, const char* const* argv, CompareOptions& options);

struct Compared {
  std::string kind, pattern;    // the contender's name, such as "window", and "window of 256"
  std::int64_t steps = 0;       // planned, from a few timed steps or as given
  nn::TrainResult result = {};  // its error may come from the timed steps
};

/// One task, and the results of each contender.
struct ComparedTask {
  RecallOptions options;
  std::vector<RecallResult> results;
};

struct CompareResult {
  std::vector<Compared> kinds;  // on the text
  std::vector<ComparedTask> tasks;
};

/// Trains one kind after the other on the text and on each task, prints tables and writes the files. Ctrl-C ends the
/// current training and reports the results so far. A kind that fails keeps its partial results. Throws the errors of
/// the options, the text and the files.
CompareResult run_compare(const CompareOptions& options, std::ostream& out, bool live = false);
/// Throws Error with a sentence for each failed kind.
void check_ended(const CompareResult& comparison);

}  // namespace poolgrad::examples
