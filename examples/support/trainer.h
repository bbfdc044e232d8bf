// The training run behind examples/train, callable more than once in a process.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <memory>

#include "allocator/caching_allocator.h"
#include "examples/support/corpus.h"
#include "examples/support/progress.h"
#include "examples/support/train_options.h"
#include "examples/support/train_result.h"
#include "nn/adamw.h"
#include "nn/language_model.h"
#include "nn/schedule.h"

namespace poolgrad::examples {

/// Trains as told, printing to `out` (with a live line where `live`); the report files are written too. Throws the
/// errors of poolgrad: ValueError and FileError for options, OutOfMemoryError where the budget does not suffice. The
/// pool is as before afterwards.
TrainResult train(TrainOptions options, std::ostream& out, bool live = false);

/// One run, in pieces.
class Trainer {
 public:
  Trainer(const TrainOptions& options, Corpus corpus, CachingAllocator& pool, Device device);

  /// Goes on from a checkpoint. Throws ValueError where it is of another model or text, or beyond the last step, and
  /// FileError.
  void resume(const std::string& path);
  void save(const std::string& path) const;

  /// One step: batch, forward, backward, clipped update.
  StepRecord step();
  /// Nats per byte over `batches` batches spread evenly over the held-out text; at most all of it.
  double validate(std::int64_t batches);
  /// How many batches the held-out text holds.
  std::int64_t validation_batches() const;

  std::int64_t steps_done() const { return step_; }
  nn::LanguageModel& model() { return *model_; }
  const Corpus& corpus() const { return corpus_; }
  /// Held-out bytes that one batch of validate() scores.
  std::int64_t validation_batch_bytes() const { return options_.batch * validation_length(); }

 private:
  struct Batch {
    Tensor tokens, targets;
  };
  Batch batch_at(const std::vector<std::uint8_t>& text, const std::vector<std::int64_t>& starts,
                 std::int64_t length) const;
  std::int64_t validation_length() const;

  const TrainOptions& options_;
  Corpus corpus_;
  CachingAllocator& pool_;
  Device device_;
  Generator generator_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  nn::CosineSchedule schedule_;
  std::int64_t step_ = 0;
  std::int64_t data_position_ = 0;  // windows drawn so far
  std::uint64_t device_allocations_ = 0;
};

}  // namespace poolgrad::examples
