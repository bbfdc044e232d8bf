// Training: the step that every trainer takes, a trainer of language models on text, and a run from the first step to
// its report: lines, validation, stopping, checkpoint, sample, files.
#pragma once

#include <array>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>

#include "allocator/caching_allocator.h"
#include "allocator/trace/trace.h"
#include "autograd/memory/rematerialisation.h"
#include "nn/language_model.h"
#include "nn/loss_scaler.h"
#include "nn/optimizer.h"
#include "nn/schedule.h"
#include "nn/training/checkpoint.h"
#include "nn/training/text.h"

namespace poolgrad::nn {

/// What a step found.
struct StepRecord {
  std::int64_t step = 0;     // counted from 1
  double loss = 0;           // mean over the tokens of this step
  double gradient_norm = 0;  // of the mean, before clipping; not finite where the step was skipped
  double learning_rate = 0;
  double loss_scale = 1;           // of the backward pass
  std::int64_t skipped_steps = 0;  // so far, by the loss scaler
  double milliseconds = 0;         // forward, backward, update
  double tokens_per_second = 0;
  std::uint64_t live_bytes = 0;  // after the step
  std::uint64_t reserved_bytes = 0;
  std::uint64_t device_allocations = 0;  // since the step before
};

/// Forward, backward, clipped update. Model and optimiser must outlive it.
class TrainingStep {
 public:
  /// Gradients are clipped at the global norm `clip_norm` (0: never). Errors begin with "[operation]". A scaler, which
  /// must outlive it too, scales the mean loss; steps whose gradients are not finite are then skipped.
  TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm = 1.0, std::string operation = "train",
               LossScaler* scaler = nullptr);

  /// `loss` returns the sum of the losses of `tokens` tokens (or their mean, with tokens = 1); the optimiser's gradient
  /// scale takes the mean. Updates at the rate and drops the gradients. The device is read once. Throws ValueError,
  /// updating nothing, where the loss is not finite, and where gradients are not, unless the scaler skips the step.
  StepRecord run(double learning_rate, double tokens, const std::function<Tensor()>& loss);

  /// Steps done; set where a run goes on.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  CachingAllocator& pool() const { return pool_; }

 private:
  const Module& model_;
  Optimizer& optimizer_;
  double clip_norm_;
  std::string operation_;
  LossScaler* scaler_;
  CachingAllocator& pool_;
  std::int64_t steps_ = 0;
  std::uint64_t device_allocations_;
};

struct TrainerOptions {
  std::int64_t batch = 1;  // windows of a step, each as long as the model's context
  std::int64_t chunk = 0;  // positions of a chunk, nn/chunked.h; 0: all at once
  std::int64_t store_every = 1;
  std::int64_t steps = 1000;
  double learning_rate = 3e-3;                  // at its peak, after 20 steps of warm-up
  double clip_norm = 1.0;                       // 0: no clipping
  double weight_decay = 0.1;                    // of matrices
  std::uint64_t seed = 1;                       // decides which windows are drawn
  Generator* generator = &default_generator();  // of the model's dropout: a checkpoint holds its state
  std::optional<DType> autocast = {};           // of the model's loss; see AutocastScope
  std::optional<LossScalerOptions> loss_scale = {};
  OptimizerKind optimizer = OptimizerKind::adamw;
  Schedule::Kind schedule = Schedule::Kind::cosine;  // down to a tenth
};

/// Trains a model of bytes on windows of a text, each drawn by (seed, number of the window). AdamW has betas 0.9 and
/// 0.95, Lion 0.9 and 0.99; SGD has Nesterov's momentum 0.9, through which its decay goes, and so takes a tenth of it;
/// Muon leaves embeddings and head to AdamW.
class Trainer {
 public:
  /// Throws ValueError for a text that is not longer than the model's context or of which less than two bytes are held
  /// out, and for a batch below 1.
  Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options = {});

  StepRecord step();
  /// Nats per byte over `batches` batches spread evenly over the held-out text; at most all of it. Without dropout.
  double validate(std::int64_t batches);
  /// The same by position in the window: the mean over the windows of the loss at each, the first with one byte to go
  /// by.
  std::vector<double> loss_by_position(std::int64_t batches);
  /// How many batches the held-out text holds, and the bytes that each scores.
  std::int64_t validation_batches() const;
  std::int64_t validation_batch_bytes() const { return options_.batch * validation_length(); }

  /// A checkpoint, with the caller's metadata, a fingerprint of the text ("text"), "optimizer" and "schedule".
  void save(const std::string& path, std::map<std::string, std::string> metadata = {}) const;
  /// Goes on from a checkpoint, bit for bit. Throws ValueError where it is of another model, another optimiser, another
  /// text (unless `other_text`), or beyond the last step, and FileError.
  void resume(const std::string& path, bool other_text = false);

  std::int64_t steps_done() const { return step_.steps(); }
  const TrainerOptions& options() const { return options_; }
  LanguageModel& model() { return *model_; }
  const Corpus& corpus() const { return corpus_; }
  Device device() const { return device_; }
  CachingAllocator& pool() const { return step_.pool(); }

 private:
  std::int64_t validation_length() const;
  /// Calls f(batch) for `batches` batches of the held-out text, without gradients and dropout. Returns how many windows
  /// they had.
  std::int64_t for_held_out(std::int64_t batches, const std::function<void(const TextWindows&)>& f);
  /// Sum over the batch.
  Tensor loss_of(const TextWindows& batch);

  TrainerOptions options_;
  std::unique_ptr<LanguageModel> model_;
  Corpus corpus_;
  Device device_;
  std::unique_ptr<Optimizer> optimizer_;
  Schedule schedule_;
  std::optional<LossScaler> scaler_;
  TrainingStep step_;
  std::int64_t data_position_ = 0;  // windows drawn so far
};

/// The held-out loss, in nats per byte, where from `first` to `last` bytes are there to go by.
struct PositionLoss {
  std::int64_t first = 0, last = 0;
  double loss = 0;
};

struct TrainResult;

struct RunOptions {
  std::int64_t report = 50;                          // steps between lines
  std::int64_t stop_after = 0;                       // save and stop after this step; 0: never
  std::int64_t sample = 300;                         // bytes of text to write at the end
  std::string save = {};                             // checkpoint to write at the end, and when stopped
  std::string json = {};                             // report to write
  std::string csv = {};                              // steps to write
  std::string config = "null";                       // JSON: "config" of the report
  bool quiet = false;                                // print nothing
  bool live = false;                                 // `out` is a terminal: a line between lines is redrawn in place
  std::map<std::string, std::string> metadata = {};  // of the checkpoint
  const Rematerialisation* memory = nullptr;         // in force: what it did is reported
  bool trace_step = false;                           // the second step's requests are recorded: step_trace
  /// Called after each line, and at the end, before what was written is reported.
  std::function<void(TrainResult& result, bool finished)> reported = {};
};

/// What a run found out. Memory since the pool's peaks were reset.
struct TrainResult {
  std::vector<StepRecord> steps;
  std::vector<std::pair<std::int64_t, double>> validations;  // step, nats per byte on a part of the held-out text
  double validation_loss = 0;                                // on all of it, or evenly spread windows of a short run
  std::int64_t validation_bytes = 0;                         // scored
  std::vector<PositionLoss> by_position;                     // of the same: 1, 2, 3 to 4, 5 to 8, ...
  Baselines baselines;
  bool interrupted = false;
  std::string prompt, sample;

  double seconds = 0;
  double tokens_per_second = 0;
  std::uint64_t peak_live_bytes = 0, peak_reserved_bytes = 0;
  std::uint64_t allocation_hash = 0;
  std::array<std::uint64_t, category_count> bytes_by_category{};  // peaks
  double hit_rate = 0;
  std::optional<RematerialisationStatistics> recomputed;     // of RunOptions::memory
  std::optional<Trace> step_trace;                           // see RunOptions::trace_step
  std::string offload_failure;                               // why the file of RunOptions::memory took no more
  std::vector<std::pair<std::string, std::string>> written;  // what, path
};

/// Takes the steps that the trainer has left, printing a line to `out` after the first one, after every `report` and
/// after the last; then validates, writes a sample and the files, and prints the report. SIGINT and SIGTERM finish the
/// step, save (without a name to "poolgrad-train.safetensors"; on sim never) and end the run. Throws what the steps
/// throw, FileError, and, before the first step, ValueError for a config that is no JSON.
TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options = {});

}  // namespace poolgrad::nn
