// examples/recall, callable from tests: options, results, and the run.
#pragma once

#include <cstdint>
#include <exception>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "examples/support/chart.h"
#include "examples/support/console.h"
#include "examples/support/layers.h"
#include "nn/tasks/sequence_task.h"
#include "nn/training/trainer.h"

namespace poolgrad::examples {

struct RecallOptions {
  std::string task_name = "recall";                 // of nn::task_kinds()
  std::int64_t distance = 1024;                     // longest training distance
  std::int64_t ask = 32768;                         // longest test distance, at least `distance`
  std::optional<std::int64_t> pairs, keys, values;  // absent: the usual numbers of the kind
  std::int64_t spacing = 8;
  std::int64_t align = 1;
  std::int64_t hops = 2;

  /// A layer that joins a key and its value, and one that finds the pair anywhere; several lists: contenders_of().
  LayerList layers = LayerList("window:256+rope:100+qk-norm,causal+nope");
  AttentionOptions attention{.attention = "dilated", .rope = RopeOptions(1e6)};
  std::int64_t width = 64;
  std::int64_t heads = 4;
  double lr = 3e-3;
  std::int64_t tokens = 1024;  // per step; at least one sequence
  std::int64_t steps = 4000;   // limit; 0: as many as fit into `seconds`
  double seconds = 0;          // limit; 0: none
  std::int64_t questions = 256;
  std::uint64_t seed = 1;
  std::string device = "cpu";
  std::int64_t report = 100;
  std::string json, csv, svg;
  bool quiet = false;

  /// Throws ValueError, one sentence.
  void check() const;
  nn::SequenceTask task() const;
  std::vector<Contender> contenders() const;
  /// Dilated attention without given segments gets 256 and the whole, at rates 1 and 4. With rate 2 in between, two
  /// heads see a residue up to middle distances; one of them learns nothing there and then misses the far ones.
  std::vector<LayerRun> layers_of(const Contender& contender) const;
  nn::LanguageModelConfig model(const Contender& contender) const;
  /// Length of the sequences at the longest test distance.
  std::int64_t longest() const;
};

/// Reads the command line. Returns the exit code if the program must end at once (--help, an error), else -1.
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

/// The results of one kind of attention.
struct RecallResult {
  std::string attention, pattern;
  std::int64_t parameters = 0;
  std::vector<RecallRecord> records = {};
  std::vector<RecallScore> scores = {};  // by distance, on unseen sequences
  std::int64_t tokens = 0;               // training tokens
  double seconds = 0;                    // of training
  double processor_seconds = 0;          // of all threads, while training
  std::uint64_t peak_bytes = 0;          // live, during training
  bool learned = false;                  // stopped early: the last level was mastered
  bool interrupted = false;
  std::string error = {};  // the error that stopped it, without scores
  std::exception_ptr failure = {};
};

/// Trains and tests each contender with the same sequences, initial weights and budget. Prints to `out`, with a live
/// line if `live`. Ctrl-C ends the training, then the tests. A contender's error is in its result, and the others run.
std::vector<RecallResult> train_and_ask(const RecallOptions& options, Device device, std::ostream& out, bool live);
/// The same; also writes the report files. Throws the errors of poolgrad; throws a contender's error after all results
/// are written.
std::vector<RecallResult> run_recall(RecallOptions options, std::ostream& out, bool live = false);

// Printed and written texts.

/// Task, model and budget, printed before training.
std::string describe_task(const RecallOptions& options, Device device);
/// Its pattern, and a note if there are too few heads for all phases of a dilated branch.
std::string describe_contender(const RecallOptions& options, const Contender& contender, const RecallResult& result);
/// A level that ended with `accuracy`, and the `next` one.
std::string describe_level(const RecallRecord& last, double accuracy, const nn::SequenceTask& next, double seconds);
/// The last step; `eta` in seconds.
std::string describe_step(const RecallOptions& options, const RecallResult& result,
                          const nn::TaskCurriculum& curriculum, double eta);
/// How the training ended.
std::string describe_end(const RecallResult& result);
/// Accuracy by distance, as a table.
std::string describe_results(const RecallOptions& options, const std::vector<RecallResult>& results);

/// Accuracy by distance, a line for each contender, and chance.
Chart recall_chart(const RecallOptions& options, const std::vector<RecallResult>& results);
/// Options, scores and steps.
Json recall_json(const RecallOptions& options, const std::vector<RecallResult>& results);

}  // namespace poolgrad::examples
