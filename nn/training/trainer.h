// Training: a trainer of language models on text, and a run from the first step to its report: lines, validation,
// stopping, checkpoint, sample, files.
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
#include "nn/training/held_out.h"
#include "nn/training/ranks.h"
#include "nn/training/step.h"

namespace poolgrad::nn {

struct TrainerOptions {
  std::int64_t batch = 1;  // windows of a step, each as long as the model's context
  std::int64_t chunk = 0;  // positions of a chunk, nn/chunked.h; 0: all at once
  std::int64_t store_every = 1;
  std::int64_t steps = 1000;
  /// At its peak, after a warm-up of min(20, steps / 2) steps; 0: usual_learning_rate() of the optimizer.
  double learning_rate = 0;
  double clip_norm = 1.0;                       // 0: no clipping
  double weight_decay = 0.1;                    // of matrices
  std::uint64_t seed = 1;                       // decides which windows are drawn
  Generator* generator = &default_generator();  // of the model's dropout: a checkpoint holds its state
  std::optional<DType> autocast = {};           // of the model's loss; see AutocastScope
  std::optional<LossScalerOptions> loss_scale = {};
  OptimizerKind optimizer = OptimizerKind::muon;
  Schedule::Kind schedule = Schedule::Kind::cosine;  // down to a tenth
  /// Decay of the moving average of the parameters that is judged, sampled from and saved beside them; 0: none.
  double ema = 0;
  /// Those that train with this one, each with a trainer of the same model, text and options, of whose methods all call
  /// the same ones. They share batches and sequences; must outlive the trainer. Null: none.
  Ranks* ranks = nullptr;
  bool shard_optimizer = false;  // each rank has the optimizer's state of its share of the parameters alone
  bool graph = false;            // steps are recorded once and replayed: TrainingStep::record()
};

/// Trains a model on windows of text, of bytes or of tokens, each drawn by (seed, number of the window), of several
/// texts also which one, by the weights: see WindowPlan. AdamW has betas 0.9 and 0.95, Lion 0.9 and 0.99; SGD has
/// Nesterov's momentum 0.9, through which its decay goes, and so takes a tenth of it; Muon leaves embeddings and head
/// to AdamW.
class Trainer {
 public:
  /// Throws ValueError for what WindowPlan, EMA and TrainingStep::record() refuse, for a text of more tokens than the
  /// model knows, and for none in place of a model.
  Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Throws as TrainingStep::run(), and what reading the text throws. All is then as before the step, unless it was the
  /// optimizer that found no memory, which says what it had updated (Optimizer::step()).
  StepRecord step();
  /// While the result lives, the model has the averages of its parameters in their place; null where there are none.
  std::unique_ptr<Substitution> averaged() const;
  /// On the batches of WindowPlan::held_out(). Without dropout, by the averages where there are any.
  HeldOutLoss validate(std::int64_t batches);
  /// The same with the loss by position. Of nothing (0 bytes) where `stop` says so after a batch, on all ranks alike.
  HeldOutLoss loss_by_position(std::int64_t batches, const std::function<bool()>& stop = {});
  /// So many tokens that go on from the prompt: sample_text() without dropout, by the averages where there are any.
  std::string sample(std::span<const std::int64_t> prompt, std::int64_t tokens);
  /// How many batches the held-out text holds.
  std::int64_t validation_batches() const { return windows_.held_out_batches(); }
  /// How many are scored where so many are asked for: each text has at least one.
  std::int64_t scored_batches(std::int64_t batches) const { return std::ssize(windows_.held_out(batches)); }

  /// A checkpoint, with the caller's metadata, the tokenizer and its fingerprint ("merges", where tokens are not
  /// bytes), that of the text ("text"), its weights ("text_weights", where it has some), "optimizer",
  /// "schedule" and "ema".
  /// Rank 0 writes it, whole. Where `path` cannot be written, the first of `otherwise` that can takes its place, and
  /// FileError says which.
  void save(const std::string& path, std::map<std::string, std::string> metadata = {},
            const std::vector<std::string>& otherwise = {}, CallSite = {}) const;
  /// What the tensors in it take, without the optimizer's state of other ranks.
  std::uint64_t checkpoint_bytes() const;
  /// Goes on from a checkpoint, bit for bit. Throws ValueError where it is of another model, tokenizer, optimizer or
  /// average, of another text or other weights (unless `other_text`), or beyond the last step, and FileError; nothing
  /// changes then.
  void resume(const std::string& path, bool other_text = false, CallSite = {});

  std::int64_t steps_done() const { return step_.steps(); }
  const TrainerOptions& options() const { return options_; }
  LanguageModel& model() { return *model_; }
  const Corpus& corpus() const { return corpus_; }
  Device device() const { return device_; }
  /// Of the optimizer, on this rank.
  std::uint64_t optimizer_bytes() const;
  CachingAllocator& pool() const { return step_.pool(); }
  /// Of the pool of recorded steps.
  Statistics recorded_memory() const { return step_.recorded_memory(); }

 private:
  /// What is here of the windows, of which the model is told.
  TextWindows share_of(std::vector<WindowPlace> places, std::int64_t length);
  BatchShare share(std::int64_t length) const;
  /// The numbers of the parameters that rank `rank` updates, where optimizer states are divided.
  std::vector<std::size_t> owned_by(int rank) const;
  std::unique_ptr<Optimizer> optimizer_of(int rank) const;
  /// That of all ranks, on rank 0.
  OptimizerState whole_optimizer_state() const;
  /// Calls add(batch, length, nats) for held-out batches, without gradients and dropout: adds to the nats of the text.
  using HeldOutVisitor = std::function<void(const TextWindows&, std::int64_t length, std::vector<double>& nats)>;
  HeldOutLoss for_held_out(std::int64_t batches, const HeldOutVisitor& add, const std::function<bool()>& stop = {});
  /// Sum over the batch, in nats.
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
  TextWindows recorded_batch_;       // that every recorded step reads
  std::int64_t data_position_ = 0;   // windows drawn so far
  mutable std::string fingerprint_;  // of the corpus, which takes a second for half a GiB; empty until it is asked for
};

/// The held-out loss, in nats per byte, where from `first` to `last` tokens are there to go by.
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
  bool save_unasked = true;                          // when stopped, where `save` says nothing
  std::int64_t save_every = 0;                       // steps between those written to `save` before; 0: none
  std::string json = {};                             // report to write; "-": to `out`, which then has no lines
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
  std::vector<double> by_text;                               // of the same, where there are several texts
  std::vector<PositionLoss> by_position;                     // of the same: 1, 2, 3 to 4, 5 to 8, ...
  Baselines baselines;
  bool interrupted = false;
  std::string error;  // what ended the run early; empty: nothing did
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
/// step, save (without a name to "poolgrad-train.safetensors", or a number after it where there is one; on sim never)
/// and end the run. A last checkpoint that cannot be written where it is to be goes there, or to an unpredictable name
/// in the folder of temporary files; FileError names the place. An error of the steps is thrown again, without a
/// checkpoint, once the report of the steps before is printed and written. Throws FileError too, and, before the first
/// step, ValueError for a config that is no JSON, for metadata that are no UTF-8 and for a stop_after that lies behind.
TrainResult train(Trainer& trainer, std::ostream& out, RunOptions options = {});
/// The same, with what was found out in `result`, which is to be new, also where it throws.
void train(Trainer& trainer, std::ostream& out, RunOptions options, TrainResult& result);

}  // namespace poolgrad::nn
