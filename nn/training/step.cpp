#include "nn/training/step.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "allocator/base/count.h"
#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/views.h"
#include "nn/training/progress.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

/// Concatenates two numbers of one device.
Tensor both_of(const Tensor& a, const Tensor& b) {
  const MemoryScope scope("read_together", Category::workspace);
  const Tensor both = Tensor::empty({2}, {.dtype = DType::f64, .device = a.device()});
  const auto part = [&](std::int64_t i) { return both.alias(sliced(both.geometry(), 0, i, i + 1, 1)); };
  part(0).copy_from(a);
  part(1).copy_from(b);
  return both;
}

/// Waits for the device. Returns 0 on sim.
std::pair<double, double> read(const Tensor& both) {
  if (both.device().is_sim()) return {0.0, 0.0};
  const std::vector<double> read = both.to_vector<double>();
  return {read[0], read[1]};
}

}  // namespace

TrainingStep::TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm, std::string operation,
                           LossScaler* scaler, Ranks* ranks, std::vector<int> owners)
    : model_(model),
      optimizer_(optimizer),
      clip_norm_(clip_norm),
      operation_(std::move(operation)),
      scaler_(scaler),
      ranks_(ranks),
      owners_(std::move(owners)),
      pool_(allocator_for(device_of(model.parameters()))),
      device_allocations_(pool_.statistics().num_device_alloc) {
  if (ranks_ == nullptr) return;
  std::vector<Tensor> trained;
  for (const Tensor& parameter : model.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  sums_ = ranks_->sum_gradients(trained);
}

void TrainingStep::accumulate(std::int64_t passes) {
  if (passes < 1)
    throw ValueError(fmt::format("[{}] a step must accumulate at least 1 pass, but is given {}", operation_, passes));
  passes_ = passes;
}

void TrainingStep::record() {
  const Device device = device_of(model_.parameters());
  if (!device.is_cuda())
    throw ValueError(fmt::format("[{}] steps can be recorded only on CUDA devices, but the model is on {}", operation_,
                                 to_string(device)));
  if (ranks_ != nullptr)
    throw ValueError(fmt::format("[{}] steps of {} ranks cannot be recorded: each waits for messages of the others",
                                 operation_, ranks_->size()));
  if (!graph_) graph_ = std::make_unique<Graph>(device);
}

StepRecord TrainingStep::run(double learning_rate, double tokens, const std::function<void()>& prepare,
                             const std::function<Tensor()>& loss) {
  const Stopwatch watch;
  pool_.begin_step();
  StepRecord record{.step = steps_ + 1, .learning_rate = learning_rate};
  try {
    prepare();
    (graph_ ? run_recorded(record, tokens, loss) : run_eagerly(record, tokens, loss));
  } catch (...) {
    for (Tensor& parameter : model_.parameters()) parameter.set_grad({});  // otherwise the next step would add to them
    throw;
  }
  count_up(steps_);

  record.milliseconds = watch.milliseconds();
  record.tokens_per_second = tokens / record.milliseconds * 1e3;
  const Statistics statistics = pool_.statistics(), recorded = recorded_memory();
  record.live_bytes = statistics.allocated_bytes.current + recorded.allocated_bytes.current;
  record.reserved_bytes = statistics.reserved_bytes.current + recorded.reserved_bytes.current;
  record.device_allocations = statistics.num_device_alloc - device_allocations_;
  device_allocations_ = statistics.num_device_alloc;
  return record;
}

Tensor TrainingStep::differentiate(double tokens, const std::function<Tensor()>& loss) {
  Tensor value;
  for (std::int64_t pass = 0; pass < passes_; ++pass) {
    const Tensor total = loss();
    value = pass == 0 ? total.detach() : value + total.detach();
    const MemoryScope scope("backward", Category::gradient);
    (scaler_ == nullptr ? total : scaler_->scaled(total * (1.0 / tokens))).backward();
  }
  return value;
}

bool TrainingStep::note(StepRecord& record, double tokens, double loss, double norm) const {
  if (scaler_ != nullptr) record.loss_scale = scaler_->scale();
  record.loss = loss / tokens;
  record.gradient_norm = std::abs(norm) / (scaler_ == nullptr ? tokens : record.loss_scale);
  return !std::isfinite(record.loss) || (scaler_ == nullptr && !std::isfinite(norm));
}

void TrainingStep::fail(const StepRecord& record) const {
  throw ValueError(fmt::format("[{}] step {} diverged: loss {}, gradient norm {}", operation_, record.step, record.loss,
                               record.gradient_norm));
}

void TrainingStep::run_eagerly(StepRecord& record, double tokens, const std::function<Tensor()>& loss) {
  if (sums_) sums_->begin(passes_);
  const Tensor value = differentiate(tokens, loss);
  if (sums_) sums_->finish();
  auto [total, norm] = read(both_of(value, gradient_norm_tensor(model_.parameters())));  // as accumulated
  if (ranks_ != nullptr) ranks_->sum({&total, 1});
  if (note(record, tokens, total, norm)) fail(record);
  optimizer_.set_learning_rate(record.learning_rate);
  if (scaler_ == nullptr) {
    optimizer_.step(clip_scale(record.gradient_norm, clip_norm_) / tokens);
  } else {
    scaler_->step(optimizer_, norm, clip_norm_);
    record.skipped_steps = scaler_->state().skipped;
  }
  if (owners_.empty()) {
    optimizer_.zero_grad();
  } else {
    for (Tensor& parameter : model_.parameters()) parameter.set_grad({});
    ranks_->share_out(model_.parameters(), owners_);
  }
}

void TrainingStep::queue(double tokens, const std::function<Tensor()>& loss) {
  const Tensor value = differentiate(tokens, loss);
  const NoGradGuard no_grad;
  const Tensor norm = gradient_norm_tensor(model_.parameters());
  found_.copy_from(both_of(value, norm));
  const Tensor of_tokens = full({}, tokens, norm.options());
  const Tensor scale = scaler_ == nullptr ? clip_scale(norm / of_tokens, clip_norm_) / of_tokens
                                          : scaler_->gradient_scale(norm, clip_norm_);
  optimizer_.step(scale + to(value - value, DType::f64));  // NaN if the loss is not finite
  optimizer_.zero_grad();
}

void TrainingStep::run_recorded(StepRecord& record, double tokens, const std::function<Tensor()>& loss) {
  if (recorded_tokens_ != 0 && tokens != recorded_tokens_)
    throw ValueError(fmt::format("[{}] recorded steps have {} tokens, not {}", operation_, recorded_tokens_, tokens));
  optimizer_.set_learning_rate(record.learning_rate);
  if (recorded_tokens_ == 0) {
    const MemoryScope scope("recorded", Category::workspace);
    found_ = Tensor::empty({2}, {.dtype = DType::f64, .device = graph_->stream().device});
    graph_->rehearse([&] { queue(tokens, loss); });
    recorded_tokens_ = tokens;
  } else {
    if (!recorded_) graph_->record([&] { queue(tokens, loss); });
    recorded_ = true;
    graph_->replay();
  }
  const auto [total, norm] = read(found_);
  const bool diverged = note(record, tokens, total, norm);
  if (!std::isfinite(total) || !std::isfinite(norm)) optimizer_.step_was_skipped();
  if (diverged) fail(record);
  if (scaler_ == nullptr) return;
  scaler_->settle(norm);
  record.skipped_steps = scaler_->state().skipped;
}

}  // namespace poolgrad::nn
