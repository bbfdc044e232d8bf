// Training of language models on text: a trainer, and a run with its lines, validation, stops, checkpoints, sample and
// files.
#pragma once

#include <array>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/trace/trace.h"
#include "autograd/memory/rematerialisation.h"
#include "nn/ema.h"
#include "nn/language_model.h"
#include "nn/loss_scaler.h"
#include "nn/optimizer.h"
#include "nn/schedule.h"
#include "nn/text/corpus.h"
#include "nn/text/ngram.h"
#include "nn/text/windows.h"
#include "nn/training/checkpoint.h"
#include "nn/training/ranks.h"
#include "nn/training/step.h"

namespace poolgrad::nn {

struct TrainerOptions {
  std::int64_t batch = 1;       // windows of a pass through the model, each as long as its context
  std::int64_t accumulate = 1;  // passes of a step, whose gradients add up
  std::int64_t chunk = 0;       // positions of a chunk, nn/chunked.h; 0: no chunks
  std::int64_t store_every = 1;
  std::int64_t steps = 1000;
  /// The peak rate, after a warm-up of min(20, steps / 2) steps; 0: usual_learning_rate() of the optimizer.
  double learning_rate = 0;
  double clip_norm = 1.0;                       // 0: no clipping
  double weight_decay = 0.1;                    // of matrices
  std::uint64_t seed = 1;                       // decides which windows are drawn
  Generator* generator = &default_generator();  // of the model's dropout: a checkpoint holds its state
  std::optional<DType> autocast = {};           // of the loss; see AutocastScope
  std::optional<LossScalerOptions> loss_scale = {};
  OptimizerKind optimizer = OptimizerKind::muon;
  Schedule::Kind schedule = Schedule::Kind::cosine;  // down to a tenth of the peak
  ContextWarmup warmup = {};                         // of the windows of steps; validation has the whole context
  /// Decay of the moving average of the parameters, which validation, samples and checkpoints use; 0: none.
  double ema = 0;
  /// The ranks that train together; nullptr: one rank. Each has a trainer of the same model, text and options, and all
  /// make the same calls. They share batches and sequences. Must outlive the trainer.
  Ranks* ranks = nullptr;
  bool shard_optimizer = false;  // each rank keeps the optimizer's state of its share of the parameters only
  bool graph = false;            // steps are recorded once and replayed: TrainingStep::record()
};

/// Losses in nats per byte; the mean of several texts is weighted.
struct ValidationLoss {
  double loss = 0;
  std::vector<double> by_text = {};  // of a corpus of several texts
  /// Loss by position in the window, if asked for; position i has a context of i + 1 tokens. `shares` is the weight of
  /// each position in a mean: its share of the bytes times the length of the window. All 1 for bytes.
  std::vector<double> by_position = {}, shares = {};
  std::int64_t bytes = 0;  // scored
};

/// Trains a model on windows of text, of bytes or of tokens. (seed, number of the window) determines each window, and
/// with several texts also the text, by weight: see WindowPlan. AdamW has betas 0.9 and 0.95, Lion 0.9 and 0.99. SGD
/// has Nesterov's momentum 0.9; its decay goes through the momentum, so it takes a tenth of it. Muon leaves embeddings
/// and head to AdamW.
class Trainer {
 public:
  /// Throws ValueError for a null model, for a text of more tokens than the model knows, for a warm-up of recorded
  /// steps, and the errors of ContextWarmup::check(), WindowPlan, EMA and TrainingStep::record().
  Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Throws the errors of TrainingStep::run() and of reading the text; the state is then as before the step. If the
  /// optimizer runs out of memory, some parameters are updated, and its error says which (Optimizer::step()).
  StepRecord step();
  /// While the result lives, the averages replace the model's parameters. Returns nullptr without averages.
  std::unique_ptr<Substitution> averaged() const;
  /// Scores the batches of WindowPlan::validation(), without dropout and with the averages, if any.
  ValidationLoss validate(std::int64_t batches);
  /// The same with the loss by position. Calls `stop` after each batch; if it returns true, which must be so on all
  /// ranks, returns a loss of 0 bytes.
  ValidationLoss loss_by_position(std::int64_t batches, const std::function<bool()>& stop = {});
  /// Continues the prompt by so many tokens: sample_text() without dropout and with the averages, if any.
  std::string sample(std::span<const std::int64_t> prompt, std::int64_t tokens);
  /// Returns the length of the windows of the next step.
  std::int64_t step_context() const { return options_.warmup.context(step_.steps() + 1, model_->config().context); }
  /// Returns the tokens of the next step.
  std::int64_t step_tokens() const { return options_.batch * options_.accumulate * step_context(); }
  /// Returns the number of batches of validation text.
  std::int64_t validation_batches() const { return windows_.validation_batches(); }
  /// Returns how many batches are scored if `batches` are asked for: each text has at least one.
  std::int64_t scored_batches(std::int64_t batches) const { return std::ssize(windows_.validation(batches)); }

  /// Writes a checkpoint. Its metadata are the caller's, "optimizer", "schedule", "ema", and the fingerprints of the
  /// text ("text") and of a tokenizer ("merges"), with the weights of texts ("text_weights"), if any. Rank 0 writes all
  /// of it. If `path` cannot be written, writes to the first possible path of `otherwise`, and throws FileError that
  /// names it.
  void save(const std::string& path, std::map<std::string, std::string> metadata = {},
            const std::vector<std::string>& otherwise = {}, CallSite = {}) const;
  /// Returns the bytes of the checkpoint's tensors, without the optimizer's state of other ranks.
  std::uint64_t checkpoint_bytes() const;
  /// Continues from a checkpoint, bit for bit. Throws ValueError if it has another model, tokenizer, optimizer or
  /// average, another text or other weights (unless `other_text`), or more steps than the run. Throws FileError.
  /// Changes nothing if it throws.
  void resume(const std::string& path, bool other_text = false, CallSite = {});

  std::int64_t steps_done() const { return step_.steps(); }
  const TrainerOptions& options() const { return options_; }
  LanguageModel& model() { return *model_; }
  const Corpus& corpus() const { return corpus_; }
  Device device() const { return device_; }
  /// Returns the bytes of the optimizer's state on this rank.
  std::uint64_t optimizer_bytes() const;
  CachingAllocator& pool() const { return step_.pool(); }
  /// Returns statistics of the pool of recorded steps.
  Statistics recorded_memory() const { return step_.recorded_memory(); }

 private:
  /// Returns this rank's share of the windows, and tells the model of it.
  TextWindows share_of(std::vector<WindowPlace> places, std::int64_t length);
  BatchShare share(std::int64_t length) const;
  /// Returns the indices of the parameters that rank `rank` updates, if optimizer states are divided.
  std::vector<std::size_t> owned_by(int rank) const;
  std::unique_ptr<Optimizer> optimizer_of(int rank) const;
  /// Returns the state of all ranks, on rank 0.
  OptimizerState whole_optimizer_state() const;
  /// Calls add(batch, length, nats) for validation batches, without gradients and dropout. It adds to `nats`, the sums
  /// of the text.
  using ValidationVisitor = std::function<void(const TextWindows&, std::int64_t length, std::vector<double>& nats)>;
  ValidationLoss for_validation(std::int64_t batches, const ValidationVisitor& add,
                                const std::function<bool()>& stop = {});
  /// Returns the sum over the batch, in nats.
  Tensor loss_of(const TextWindows& batch);

  TrainerOptions options_;
  std::unique_ptr<LanguageModel> model_;
  Corpus corpus_;
  WindowPlan windows_;
  Device device_;
  std::vector<int> owners_;  // by parameter; empty: every rank has all
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<EMA> average_;
  Schedule schedule_;
  std::optional<LossScaler> scaler_;
  TrainingStep step_;
  std::vector<TextWindows> recorded_batches_;  // the input of every recorded step
  std::int64_t data_position_ = 0;             // windows drawn so far
  mutable std::string fingerprint_;  // of the corpus; empty until asked for, since it takes a second for half a GiB
};

/// The validation loss, in nats per byte, of tokens with a context of `first` to `last` tokens.
struct PositionLoss {
  std::int64_t first = 0, last = 0;
  double loss = 0;
};

struct TrainResult;

struct RunOptions {
  std::int64_t report = 50;                          // steps between lines
  std::int64_t stop_after = 0;                       // save and stop after this step; 0: never
  std::int64_t sample = 300;                         // tokens of text to write at the end
  std::string save = {};                             // checkpoint to write at the end, and when stopped
  bool save_unasked = true;                          // also save when stopped if `save` is empty
  std::int64_t save_every = 0;                       // steps between the checkpoints to `save` during the run; 0: none
  std::string json = {};                             // report to write; "-": to `out`, without other lines
  std::string metrics = {};                          // file of measurements at each line: see MetricsFile
  std::string config = "null";                       // JSON: "config" of the report
  bool quiet = false;                                // print nothing
  bool live = false;                                 // `out` is a terminal: redraw a live line between lines
  std::map<std::string, std::string> metadata = {};  // of the checkpoint
  const Rematerialisation* memory = nullptr;         // in force; the report includes its statistics
  bool trace_step = false;                           // record the requests of the second step: step_trace
  /// Called after each line, and at the end, also of a run that failed, before the list of written files.
  std::function<void(Trainer& trainer, TrainResult& result, bool finished)> reported = {};
};

/// The results of a run. Memory is counted since the last reset of the pool's peaks.
struct TrainResult {
  std::string config;  // RunOptions::config
  std::vector<StepRecord> steps;
  std::vector<std::pair<std::int64_t, double>> validations;  // step, nats per byte on a part of the validation text
  double validation_loss = 0;             // on all of it, or on evenly spread windows for a short run
  std::int64_t validation_bytes = 0;      // scored
  std::vector<double> by_text;            // of the same, for several texts
  std::vector<PositionLoss> by_position;  // of the same: 1, 2, 3 to 4, 5 to 8, ...
  Baselines baselines;
  bool interrupted = false;
  std::string error;  // the error that ended the run early; empty: none
  std::string prompt, sample;

  double seconds = 0;
  double tokens_per_second = 0;
  std::uint64_t peak_live_bytes = 0, peak_reserved_bytes = 0;
  std::uint64_t allocation_hash = 0;
  std::array<std::uint64_t, category_count> bytes_by_category{};  // peaks
  double hit_rate = 0;
  std::optional<RematerialisationStatistics> recomputed;     // of RunOptions::memory
  std::optional<Trace> step_trace;                           // see RunOptions::trace_step
  std::string offload_failure;                               // why the file of RunOptions::memory was full or failed
  std::vector<std::pair<std::string, std::string>> written;  // what, path
};

/// Takes the remaining steps. Prints a line to `out` after the first step, after every `report` steps and after the
/// last. Then validates, writes a sample and the files, and prints the report.
///
/// SIGINT and SIGTERM finish the step, save and end the run. Without a name, the checkpoint goes to
/// "poolgrad-train.safetensors", with a number if that exists; on sim it is not written. If the last checkpoint cannot
/// be written to its path, it goes to such a name, or to an unpredictable name in the folder of temporary files.
/// FileError then names the path.
///
/// Rethrows an error of the steps, without a checkpoint, after the report is printed and written. Throws FileError.
/// Before the first step, throws ValueError for a config that is not JSON, metadata that are not UTF-8, and a
/// stop_after in the past.
TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options = {});

}  // namespace poolgrad::nn
