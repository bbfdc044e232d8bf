// One text, one model, one budget of time, several kinds of attention: what they learn, how fast, in how much memory.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/support/train.h"

namespace poolgrad::examples {

struct CompareOptions {
  TrainOptions train;         // its layers or its attention list several: contenders_of()
  std::string time = "4min";  // of training, for each; not used where steps are given
  std::string json, html;
  bool quiet = false;

  /// Throws ValueError, one sentence.
  void check() const;
  std::vector<Contender> contenders() const;
  /// What is trained of one of them.
  TrainOptions of(const Contender& contender) const;
  /// `time` as a number, above 0. Throws ValueError.
  double seconds() const;
};

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1. Throws
/// ValueError, one sentence, for a --budget that is neither of time nor of memory, or twice of one.
int parse_compare_options(int argc, const char* const* argv, CompareOptions& options);

struct Compared {
  std::string kind, pattern;    // the contender's name, such as "window"; "window of 256"
  std::int64_t steps = 0;       // planned: by a few steps that were timed, or as given
  nn::TrainResult result = {};  // its error: also that of the steps that were timed
};

/// Trains one kind after the other and prints a table; Ctrl-C ends the one that runs, and what there is is reported, as
/// is what a kind that fails had found out. Writes the files. Throws what is wrong with the options, the text and the
/// files.
std::vector<Compared> run_compare(const CompareOptions& options, std::ostream& out, bool live = false);
/// Throws Error, a sentence for each kind that failed.
void check_ended(const std::vector<Compared>& all);

}  // namespace poolgrad::examples
