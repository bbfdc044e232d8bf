// Compares kinds of attention on one text, model and time budget: loss, speed and memory.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/support/train.h"

namespace poolgrad::examples {

struct CompareOptions {
  TrainOptions train;         // `layers` or `attention` lists several: contenders_of()
  std::string time = "4min";  // training time of each; ignored if steps are given
  std::string json, html;
  bool quiet = false;

  /// Throws ValueError, one sentence.
  void check() const;
  std::vector<Contender> contenders() const;
  /// The training options of one contender.
  TrainOptions of(const Contender& contender) const;
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

/// Trains one kind after the other, prints a table and writes the files. Ctrl-C ends the current training and reports
/// the results so far. A kind that fails keeps its partial results. Throws the errors of the options, the text and the
/// files.
std::vector<Compared> run_compare(const CompareOptions& options, std::ostream& out, bool live = false);
/// Throws Error with a sentence for each failed kind.
void check_ended(const std::vector<Compared>& all);

}  // namespace poolgrad::examples
