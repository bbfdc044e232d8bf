// The step that every trainer takes, and what it found.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "nn/loss_scaler.h"
#include "nn/optimizer.h"
#include "nn/training/ranks.h"
#include "tensor/graph.h"

namespace poolgrad::nn {

/// What a step found.
struct StepRecord {
  std::int64_t step = 0;     // counted from 1
  double loss = 0;           // mean over the tokens of this step; of a Trainer: nats per byte
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

/// Forward, backward, clipped update. Model and optimizer must outlive it.
class TrainingStep {
 public:
  /// Gradients are clipped at the global norm `clip_norm` (0: never). Errors begin with "[operation]". A scaler, which
  /// must outlive it too, scales the mean loss; steps whose gradients are not finite are then skipped. With ranks,
  /// which must outlive it as well, loss, gradients and norm are those of all of them; `owners` says which rank's
  /// optimizer has each of the model's parameters, which the others take over from it (none: every rank's has all).
  TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm = 1.0, std::string operation = "train",
               LossScaler* scaler = nullptr, Ranks* ranks = nullptr, std::vector<int> owners = {});

  /// `loss` returns the sum of the losses of `tokens` tokens (or their mean, with tokens = 1); the optimizer's gradient
  /// scale takes the mean; with ranks, the sum of those that are here, of `tokens` on all ranks. Updates at the rate
  /// and drops the gradients, also where it throws. The device is read once. Throws ValueError, updating nothing, where
  /// the loss is not finite, and where gradients are not, unless the scaler skips the step.
  StepRecord run(double learning_rate, double tokens, const std::function<Tensor()>& loss) {
    return run(
        learning_rate, tokens, [] {}, loss);
  }
  /// The same, with what the host does before the loss is computed, such as to bring a batch to the device.
  StepRecord run(double learning_rate, double tokens, const std::function<void()>& prepare,
                 const std::function<Tensor()>& loss);

  /// From now on the device decides about clipping and skipping, and the second of the steps that follow is recorded
  /// (tensor/graph.h): it and all later ones are launched as a whole, to the bits of eager steps. `loss` is called for
  /// the first two of them alone, and computes from the same tensors each time, into which `prepare` copies. Every step
  /// is of as many tokens: run() throws ValueError for another number, and Error where something cannot be recorded,
  /// before it changes anything. Throws ValueError where the model is not on a CUDA device, and with ranks.
  void record();
  /// Of the pool of recorded steps.
  Statistics recorded_memory() const { return graph_ ? graph_->statistics() : Statistics{}; }

  /// Steps done; set where a run goes on.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  CachingAllocator& pool() const { return pool_; }

 private:
  /// Forward and backward. Returns the loss.
  Tensor differentiate(double tokens, const std::function<Tensor()>& loss);
  void run_eagerly(StepRecord& record, double tokens, const std::function<Tensor()>& loss);
  void run_recorded(StepRecord& record, double tokens, const std::function<Tensor()>& loss);
  /// All of a step that is the device's, which leaves loss and norm in found_.
  void queue(double tokens, const std::function<Tensor()>& loss);
  /// Says what was read. Returns whether the run cannot go on.
  bool note(StepRecord& record, double tokens, double loss, double norm) const;
  [[noreturn]] void fail(const StepRecord& record) const;

  const Module& model_;
  Optimizer& optimizer_;
  double clip_norm_;
  std::string operation_;
  LossScaler* scaler_;
  Ranks* ranks_;
  std::vector<int> owners_;
  std::unique_ptr<GradientSums> sums_;
  CachingAllocator& pool_;
  std::unique_ptr<Graph> graph_;  // of steps that are recorded
  Tensor found_;                  // by the device: loss and norm, f64
  double recorded_tokens_ = 0;    // of a step; 0: none was queued yet
  bool recorded_ = false;
  std::int64_t steps_ = 0;
  std::uint64_t device_allocations_;
};

}  // namespace poolgrad::nn
