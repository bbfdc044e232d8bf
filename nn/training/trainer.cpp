#include "nn/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/autocast.h"
#include "autograd/operators/arithmetic.h"
#include "autograd/operators/views.h"
#include "nn/chunked.h"
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

std::unique_ptr<Optimizer> optimizer_for(const LanguageModel& model, const TrainerOptions& o) {
  constexpr double momentum = 0.9;
  const AdamWOptions adamw{
      .learning_rate = o.learning_rate, .beta2 = 0.95, .weight_decay = o.weight_decay, .decay_matrices_only = true};
  const auto is_vector = [](const std::string&, const Tensor& parameter) { return parameter.rank() < 2; };
  const auto is_table = [](const std::string& name, const Tensor&) {
    return name == "embedding.weight" || name == "positions.weight" || name == "head.weight";
  };
  switch (o.optimizer) {
    case OptimizerKind::adamw: break;
    case OptimizerKind::sgd:
      return std::make_unique<SGD>(model.named_parameters(),
                                   SGDOptions{.learning_rate = o.learning_rate,
                                              .momentum = momentum,
                                              .weight_decay = o.weight_decay * (1 - momentum),
                                              .nesterov = true,
                                              .groups = {{.applies = is_vector, .weight_decay = 0.0}}});
    case OptimizerKind::lion:
      return std::make_unique<Lion>(
          model.named_parameters(),
          LionOptions{.learning_rate = o.learning_rate, .weight_decay = o.weight_decay, .decay_matrices_only = true});
    case OptimizerKind::muon:
      return std::make_unique<Muon>(model.named_parameters(), MuonOptions{.adamw = adamw, .left_to_adamw = is_table});
  }
  return std::make_unique<AdamW>(model.named_parameters(), adamw);
}

std::optional<LossScaler> scaler_for(const TrainerOptions& options, Device device) {
  return options.loss_scale ? std::optional<LossScaler>(std::in_place, device, *options.loss_scale) : std::nullopt;
}

/// Two numbers of one device, which is waited for once. 0 on sim.
std::pair<double, double> read_together(const Tensor& a, const Tensor& b) {
  const MemoryScope scope("read_together", Category::workspace);
  const Tensor both = Tensor::empty({2}, {.dtype = DType::f64, .device = a.device()});
  const auto part = [&](std::int64_t i) { return both.alias(sliced(both.geometry(), 0, i, i + 1, 1)); };
  part(0).copy_from(a);
  part(1).copy_from(b);
  if (both.device().is_sim()) return {0.0, 0.0};
  const std::vector<double> read = both.to_vector<double>();
  return {read[0], read[1]};
}

}  // namespace

TrainingStep::TrainingStep(const Module& model, Optimizer& optimizer, double clip_norm, std::string operation,
                           LossScaler* scaler)
    : model_(model),
      optimizer_(optimizer),
      clip_norm_(clip_norm),
      operation_(std::move(operation)),
      scaler_(scaler),
      pool_(allocator_for(device_of(model))),
      device_allocations_(pool_.statistics().num_device_alloc) {}

StepRecord TrainingStep::run(double learning_rate, double tokens, const std::function<Tensor()>& loss) {
  const Stopwatch watch;
  pool_.begin_step();
  StepRecord record{.step = steps_ + 1, .learning_rate = learning_rate};
  Tensor value;
  {
    const Tensor total = loss();
    value = total.detach();
    const MemoryScope scope("backward", Category::gradient);
    (scaler_ == nullptr ? total : scaler_->scaled(total * (1.0 / tokens))).backward();
  }
  double norm = 0;  // of the gradients as they are
  std::tie(record.loss, norm) = read_together(value, gradient_norm_tensor(model_.parameters()));
  if (scaler_ != nullptr) record.loss_scale = scaler_->scale();
  record.loss /= tokens;
  record.gradient_norm = std::abs(norm) / (scaler_ == nullptr ? tokens : record.loss_scale);
  if (!std::isfinite(record.loss) || (scaler_ == nullptr && !std::isfinite(norm)))
    throw ValueError(fmt::format("[{}] step {} diverged: loss {}, gradient norm {}", operation_, record.step,
                                 record.loss, record.gradient_norm));
  optimizer_.set_learning_rate(learning_rate);
  if (scaler_ == nullptr) {
    optimizer_.step(clip_scale(record.gradient_norm, clip_norm_) / tokens);
  } else {
    scaler_->step(optimizer_, norm, clip_norm_);
    record.skipped_steps = scaler_->state().skipped;
  }
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
      optimizer_(optimizer_for(*model_, options)),
      schedule_{.kind = options.schedule,
                .peak = options.learning_rate,
                .warmup = std::min(warmup_steps, options.steps / 2),
                .steps = options.steps},
      scaler_(scaler_for(options, device_)),
      step_(*model_, *optimizer_, options.clip_norm, "train", scaler_ ? &*scaler_ : nullptr) {
  const std::int64_t context = model_->config().context;
  const auto bytes = static_cast<std::int64_t>(corpus_.train.size());
  if (bytes <= context)
    throw ValueError(fmt::format("[train] the text is shorter than the context: {} bytes to train on, --context {}",
                                 bytes, context));
  if (corpus_.validation.size() < 2) throw ValueError("[train] the text is too short to hold any of it out");
  if (options.batch < 1)
    throw ValueError(fmt::format("[train] the batch must be at least 1, but is {}", options.batch));
  if (options.chunk < 0 || options.store_every < 1)
    throw ValueError(
        fmt::format("[train] chunks must have at least 1 position (0: no chunks) and states be kept every "
                    "so many of them: chunk {}, store_every {}",
                    options.chunk, options.store_every));
}

void Trainer::resume(const std::string& path, bool other_text) {
  const std::map<std::string, std::string> metadata = read_training_metadata(path);
  const auto entry = [&](const std::string& name, const std::string& otherwise) {
    return metadata.contains(name) ? metadata.at(name) : otherwise;
  };
  if (!other_text && entry("text", "") != fingerprint(corpus_.train))
    throw ValueError("[train] the checkpoint " + path + " was trained on another text (--other-text allows it)");
  if (const std::string by = entry("optimizer", "adamw"); by != to_string(options_.optimizer))
    throw ValueError(fmt::format("[train] the checkpoint {} was trained by {}, whose state {} cannot go on with", path,
                                 by, to_string(options_.optimizer)));
  const TrainingState state = load_training_state(path, *model_, *optimizer_);
  if (state.step > options_.steps)
    throw ValueError(
        fmt::format("[train] the checkpoint {} has done {} steps, --steps is {}", path, state.step, options_.steps));
  step_.set_steps(state.step);
  data_position_ = state.data_position;
  if (scaler_ && state.loss_scale) scaler_->load(*state.loss_scale);
  options_.generator->set_state(state.generator);
}

void Trainer::save(const std::string& path, std::map<std::string, std::string> metadata) const {
  metadata["text"] = fingerprint(corpus_.train);
  metadata["optimizer"] = to_string(options_.optimizer);
  metadata["schedule"] = to_string(options_.schedule);
  save_training_state(path, *model_, *optimizer_,
                      {.step = step_.steps(),
                       .data_position = data_position_,
                       .generator = options_.generator->state(),
                       .loss_scale = scaler_ ? std::optional(scaler_->state()) : std::nullopt,
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
    return loss_of(batch);
  });
}

Tensor Trainer::loss_of(const TextWindows& batch) {
  const AutocastScope autocast(options_.autocast);
  if (options_.chunk == 0) return model_->loss(batch.tokens, batch.targets, true);
  return chunked_loss(*model_, batch.tokens, batch.targets,
                      {.chunk = options_.chunk, .store_every = options_.store_every});
}

std::int64_t Trainer::validation_length() const {
  return std::min(model_->config().context, static_cast<std::int64_t>(corpus_.validation.size()) - 1);
}

std::int64_t Trainer::validation_batches() const {
  const auto bytes = static_cast<std::int64_t>(corpus_.validation.size()) - 1;
  return std::max<std::int64_t>(1, bytes / (validation_length() * options_.batch));
}

std::int64_t Trainer::for_held_out(std::int64_t batches, const std::function<void(const TextWindows&)>& f) {
  const NoGradGuard no_grad;
  const std::int64_t length = validation_length();
  const std::int64_t last_start = static_cast<std::int64_t>(corpus_.validation.size()) - 1 - length;
  const std::int64_t windows = std::min(batches, validation_batches()) * options_.batch;
  model_->eval();
  for (std::int64_t window = 0; window < windows;) {
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < options_.batch; ++row, ++window)
      starts.push_back(windows > 1 ? last_start * window / (windows - 1) : 0);
    f(windows_of(corpus_.validation, starts, length, device_));
  }
  model_->train();
  return windows;
}

double Trainer::validate(std::int64_t batches) {
  double sum = 0;
  const std::int64_t windows = for_held_out(batches, [&](const TextWindows& batch) { sum += loss_of(batch).item(); });
  return sum / static_cast<double>(windows * validation_length());
}

std::vector<double> Trainer::loss_by_position(std::int64_t batches) {
  const std::int64_t length = validation_length(), chunk = options_.chunk > 0 ? options_.chunk : length;
  std::vector<double> sums(static_cast<std::size_t>(length));
  const std::int64_t windows = for_held_out(batches, [&](const TextWindows& batch) {
    const AutocastScope autocast(options_.autocast);
    auto state = model_->new_state(length);
    for (std::int64_t begin = 0; begin < length; begin += chunk) {
      const std::int64_t end = std::min(begin + chunk, length);
      const auto part = [&](const Tensor& x) { return slice(x, 1, begin, end); };
      const std::vector<double> losses =
          model_->losses(part(batch.tokens), part(batch.targets), options_.chunk > 0 ? &state : nullptr)
              .to_vector<double>();
      for (std::size_t i = 0; i < losses.size(); ++i)
        sums[static_cast<std::size_t>(begin) + i % static_cast<std::size_t>(end - begin)] += losses[i];
    }
  });
  for (double& sum : sums) sum /= static_cast<double>(windows);
  return sums;
}

}  // namespace poolgrad::nn
