#include "nn/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "nn/training/progress.h"
#include "nn/training/random.h"
#include "tensor/grad_mode.h"

namespace poolgrad::nn {

namespace {

constexpr std::int64_t warmup_steps = 20;

/// FNV-1a of the text, by which a checkpoint knows it again.
std::string fingerprint(const std::vector<std::uint8_t>& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

Device device_of(const Module& model) {
  const std::vector<Tensor> parameters = model.parameters();
  return parameters.empty() ? cpu : parameters.front().device();
}

}  // namespace

TrainingStep::TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm, std::string operation)
    : model_(model),
      optimizer_(optimizer),
      clip_norm_(clip_norm),
      operation_(std::move(operation)),
      pool_(allocator_for(device_of(model))),
      device_allocations_(pool_.statistics().num_device_alloc) {}

StepRecord TrainingStep::run(double learning_rate, double tokens, const std::function<Tensor()>& loss) {
  const Stopwatch watch;
  pool_.begin_step();
  StepRecord record{.step = steps_ + 1, .learning_rate = learning_rate};
  {
    const Tensor total = loss();
    record.loss = total.item() / tokens;
    const MemoryScope scope("backward", Category::gradient);
    total.backward();
  }
  record.gradient_norm = gradient_norm(model_.parameters()) / tokens;
  if (!std::isfinite(record.loss) || !std::isfinite(record.gradient_norm))
    throw ValueError(fmt::format("[{}] step {} diverged: loss {}, gradient norm {}", operation_, record.step,
                                 record.loss, record.gradient_norm));
  optimizer_.set_learning_rate(learning_rate);
  optimizer_.step(clip_scale(record.gradient_norm, clip_norm_) / tokens);
  optimizer_.zero_grad();
  ++steps_;

  record.milliseconds = watch.milliseconds();
  record.tokens_per_second = tokens / record.milliseconds * 1e3;
  const Statistics statistics = pool_.statistics();
  record.live_bytes = statistics.allocated_bytes.current;
  record.reserved_bytes = statistics.reserved_bytes.current;
  record.device_allocations = statistics.num_device_alloc - device_allocations_;
  device_allocations_ = statistics.num_device_alloc;
  return record;
}

Trainer::Trainer(std::unique_ptr<LanguageModel> model, Corpus corpus, TrainerOptions options)
    : options_(options),
      model_(std::move(model)),
      corpus_(std::move(corpus)),
      device_(device_of(*model_)),
      optimizer_(model_->named_parameters(), {.learning_rate = options.learning_rate,
                                              .beta2 = 0.95,
                                              .weight_decay = options.weight_decay,
                                              .decay_matrices_only = true}),
      schedule_{
          .peak = options.learning_rate, .warmup = std::min(warmup_steps, options.steps / 2), .steps = options.steps},
      step_(*model_, optimizer_, options.clip_norm) {
  const std::int64_t context = model_->config().context;
  const auto bytes = static_cast<std::int64_t>(corpus_.train.size());
  if (bytes <= context)
    throw ValueError(fmt::format("[train] the text is shorter than the context: {} bytes to train on, --context {}",
                                 bytes, context));
  if (corpus_.validation.size() < 2) throw ValueError("[train] the text is too short to hold any of it out");
  if (options.batch < 1)
    throw ValueError(fmt::format("[train] the batch must be at least 1, but is {}", options.batch));
}

void Trainer::resume(const std::string& path, bool other_text) {
  if (!other_text && read_training_metadata(path)["text"] != fingerprint(corpus_.train))
    throw ValueError("[train] the checkpoint " + path + " was trained on another text (--other-text allows it)");
  const TrainingState state = load_training_state(path, *model_, optimizer_);
  if (state.step > options_.steps)
    throw ValueError(
        fmt::format("[train] the checkpoint {} has done {} steps, --steps is {}", path, state.step, options_.steps));
  step_.set_steps(state.step);
  data_position_ = state.data_position;
  options_.generator->set_state(state.generator);
}

void Trainer::save(const std::string& path, std::map<std::string, std::string> metadata) const {
  metadata["text"] = fingerprint(corpus_.train);
  save_training_state(path, *model_, optimizer_,
                      {.step = step_.steps(),
                       .data_position = data_position_,
                       .generator = options_.generator->state(),
                       .metadata = std::move(metadata)});
}

StepRecord Trainer::step() {
  const std::int64_t context = model_->config().context;
  TextWindows batch;  // lives until the step is done
  return step_.run(schedule_.rate(step_.steps() + 1), static_cast<double>(options_.batch * context), [&] {
    std::vector<std::int64_t> starts;
    const std::uint64_t last_start = corpus_.train.size() - static_cast<std::size_t>(context);
    for (std::int64_t row = 0; row < options_.batch; ++row)
      starts.push_back(static_cast<std::int64_t>(
          random_below(options_.seed, static_cast<std::uint64_t>(data_position_++), last_start)));
    batch = windows_of(corpus_.train, starts, context, device_);
    return model_->loss(batch.tokens, batch.targets, true);
  });
}

std::int64_t Trainer::validation_length() const {
  return std::min(model_->config().context, static_cast<std::int64_t>(corpus_.validation.size()) - 1);
}

std::int64_t Trainer::validation_batches() const {
  const auto bytes = static_cast<std::int64_t>(corpus_.validation.size()) - 1;
  return std::max<std::int64_t>(1, bytes / (validation_length() * options_.batch));
}

double Trainer::validate(std::int64_t batches) {
  const NoGradGuard no_grad;
  const std::int64_t length = validation_length();
  const std::int64_t last_start = static_cast<std::int64_t>(corpus_.validation.size()) - 1 - length;
  const std::int64_t windows = std::min(batches, validation_batches()) * options_.batch;
  model_->eval();
  double sum = 0;
  for (std::int64_t window = 0; window < windows;) {
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < options_.batch; ++row, ++window)
      starts.push_back(windows > 1 ? last_start * window / (windows - 1) : 0);
    const TextWindows batch = windows_of(corpus_.validation, starts, length, device_);
    sum += model_->loss(batch.tokens, batch.targets, true).item();
  }
  model_->train();
  return sum / static_cast<double>(windows * length);
}

}  // namespace poolgrad::nn
