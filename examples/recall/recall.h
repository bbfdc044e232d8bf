// examples/recall, callable from tests: what it can be told, what a kind of attention achieves, the run.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "examples/recall/task.h"
#include "examples/support/layers.h"
#include "nn/training/trainer.h"

namespace poolgrad::examples {

struct RecallOptions {
  std::string task_name = "kv";
  std::int64_t distance = 1024;                     // trained up to
  std::int64_t ask = 32768;                         // asked up to, at least `distance`
  std::optional<std::int64_t> pairs, keys, values;  // absent: 16 each; a passkey of 8 digits
  std::int64_t spacing = 8;
  std::int64_t align = 1;

  /// A layer that joins a key and its value, and one that finds the pair anywhere; several lists: contenders_of().
  LayerList layers = LayerList("window:256+rope:100+qk-norm,causal+nope");
  AttentionOptions attention{.attention = "dilated", .rope = RopeOptions(1e6)};
  std::int64_t width = 64;
  std::int64_t heads = 4;
  double lr = 3e-3;
  std::int64_t tokens = 1024;  // of a step; at least one sequence
  std::int64_t steps = 4000;   // at most; 0: as many as fit into `seconds`
  double seconds = 0;          // at most; 0: any
  std::int64_t questions = 256;
  std::uint64_t seed = 1;
  std::string device = "cpu";
  std::int64_t report = 100;
  std::string json, csv, svg;
  bool quiet = false;

  /// Throws ValueError, one sentence.
  void check() const;
  RecallTask task() const;
  std::vector<Contender> contenders() const;
  /// Dilated attention without segments given gets 256 and the whole, at rates 1 and 4. With a rate of 2 in between,
  /// two heads see a residue up to middle distances, one of them learns nothing there, and the far ones are lost to it.
  std::vector<LayerRun> layers_of(const Contender& contender) const;
  nn::LanguageModelConfig model(const Contender& contender) const;
  /// Of the sequences at the longest distance that is asked.
  std::int64_t longest() const;
};

/// Reads the command line. Returns the exit code if the program is to end at once (--help, a fault), else -1.
int parse_recall_options(int argc, const char* const* argv, RecallOptions& options);

/// loss: nats per answer.
struct RecallRecord : nn::StepRecord {
  std::int64_t distance = 0, pairs = 0;  // of the step's task
  double accuracy = 0;                   // of this step
};

struct RecallScore {
  std::int64_t distance = 0;
  std::int64_t right = 0, asked = 0;
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(asked); }
};

/// What one kind of attention achieved.
struct RecallResult {
  std::string attention, pattern;
  std::int64_t parameters = 0;
  std::vector<RecallRecord> records = {};
  std::vector<RecallScore> scores = {};  // by distance, on sequences not trained on
  std::int64_t tokens = 0;               // trained on
  double seconds = 0;                    // of training
  double processor_seconds = 0;          // of all threads, while training
  std::uint64_t peak_bytes = 0;          // live, while training
  bool learned = false;                  // ended before its budget because the last level was mastered
  bool interrupted = false;
  std::string error = {};  // what ended it early, without scores
};

/// Trains and tests each contender with the same sequences, initial weights and budget, printing to `out` (with a live
/// line where `live`), and writes the report files. Ctrl-C ends the training, then tests. Throws the errors of
/// poolgrad; what one contender throws, when the others have had their turn and all that is known is written.
std::vector<RecallResult> run_recall(RecallOptions options, std::ostream& out, bool live = false);

// What the run prints and writes.

/// Task, model and budget, before anything is trained.
std::string describe_task(const RecallOptions& options, Device device);
/// Its pattern, and a note where the heads are too few to take every phase of a dilated branch.
std::string describe_contender(const RecallOptions& options, const Contender& contender, const RecallResult& result);
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

/// Accuracy by distance, a line for each contender, and chance. A file of its own, light or dark.
std::string recall_svg(const RecallOptions& options, const std::vector<RecallResult>& results);
/// Throw FileError where the file cannot be written.
void write_recall_json(const std::string& path, const RecallOptions& options, const std::vector<RecallResult>& results,
                       std::ostream& out);
void write_recall_csv(const std::string& path, const std::vector<RecallResult>& results, std::ostream& out);

}  // namespace poolgrad::examples
