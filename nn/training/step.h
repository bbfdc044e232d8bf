// The training step that every trainer takes, and its record.
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

/// The record of a step.
struct StepRecord {
  std::int64_t step = 0;     // counted from 1
  std::int64_t context = 0;  // tokens of its windows, of a Trainer
  double loss = 0;           // mean over the tokens of this step; of a Trainer: nats per byte
  double gradient_norm = 0;  // of the mean, before clipping; not finite if the step was skipped
  double learning_rate = 0;
  double loss_scale = 1;           // of the backward pass
  std::int64_t skipped_steps = 0;  // so far, by the loss scaler
  double milliseconds = 0;         // forward, backward, update
  double tokens_per_second = 0;
  std::uint64_t live_bytes = 0;  // after the step
  std::uint64_t reserved_bytes = 0;
  std::uint64_t device_allocations = 0;  // since the previous step
};

/// Calls f(name, value) for every field, as in the files of a run.
template <class F>
void for_each_field(const StepRecord& s, const F& f) {
  f("step", s.step);
  f("context", s.context);
  f("loss", s.loss);
  f("gradient_norm", s.gradient_norm);
  f("learning_rate", s.learning_rate);
  f("milliseconds", s.milliseconds);
  f("tokens_per_second", s.tokens_per_second);
  f("live_bytes", s.live_bytes);
  f("reserved_bytes", s.reserved_bytes);
  f("device_allocations", s.device_allocations);
  f("loss_scale", s.loss_scale);
  f("skipped_steps", s.skipped_steps);
}

/// Forward, backward, clipped update. Model and optimizer must outlive it.
class TrainingStep {
 public:
  /// Clips gradients at the global norm `clip_norm` (0: never). Errors begin with "[operation]". A scaler scales the
  /// mean loss and skips steps whose gradients are not finite. With ranks, loss, gradients and norm are those of all
  /// ranks. `owners` names the rank that updates each of the model's parameters, for the others to copy; empty: every
  /// rank updates all. Scaler and ranks must outlive it.
  TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm = 1.0, std::string operation = "train",
               LossScaler* scaler = nullptr, Ranks* ranks = nullptr, std::vector<int> owners = {});

  /// `loss` returns the sum of the losses of `tokens` tokens, or their mean with tokens = 1. With ranks, it returns the
  /// local sum, and `tokens` counts all ranks. The optimizer's gradient scale takes the mean. Updates at the given rate
  /// and drops the gradients, also if it throws. Reads from the device once. Throws ValueError, updating nothing, if
  /// the loss is not finite, or the gradients are not and no scaler skips the step.
  StepRecord run(double learning_rate, double tokens, const std::function<Tensor()>& loss) {
    return run(
        learning_rate, tokens, [] {}, loss);
  }
  /// The same; calls `prepare` before the loss, for example to copy a batch to the device.
  StepRecord run(double learning_rate, double tokens, const std::function<void()>& prepare,
                 const std::function<Tensor()>& loss);

  /// From now on a step calls `loss` so many times, each time followed by a backward pass; losses and gradients add up.
  /// Throws ValueError for a number below 1.
  void accumulate(std::int64_t passes);
  /// From now on the device decides on clipping and skipping. The second following step is recorded (tensor/graph.h);
  /// it and all later ones are launched as a whole, with the bits of eager steps. `loss` is called only in the first
  /// two steps. It computes from the same tensors each time, into which `prepare` copies. run() throws ValueError for
  /// another number of tokens, and Error, changing nothing, for an operation that cannot be recorded. Throws ValueError
  /// if the model is not on a CUDA device, and with ranks.
  void record();
  /// Returns statistics of the pool of recorded steps.
  Statistics recorded_memory() const { return graph_ ? graph_->statistics() : Statistics{}; }

  /// Returns the steps done; set_steps() sets them when a run resumes.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  CachingAllocator& pool() const { return pool_; }

 private:
  /// Runs forward and backward passes. Returns the sum of the losses.
  Tensor differentiate(double tokens, const std::function<Tensor()>& loss);
  void run_eagerly(StepRecord& record, double tokens, const std::function<Tensor()>& loss);
  void run_recorded(StepRecord& record, double tokens, const std::function<Tensor()>& loss);
  /// Queues the device's part of a step, which leaves loss and norm in found_.
  void queue(double tokens, const std::function<Tensor()>& loss);
  /// Records loss and norm. Returns whether the run has diverged.
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
  std::unique_ptr<Graph> graph_;  // of recorded steps
  Tensor found_;                  // loss and norm from the device, f64
  double recorded_tokens_ = 0;    // of a recorded step; 0: none was queued yet
  bool recorded_ = false;
  std::int64_t steps_ = 0, passes_ = 1;
  std::uint64_t device_allocations_;
};

}  // namespace poolgrad::nn
