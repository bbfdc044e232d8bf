#include "examples/support/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "examples/support/random.h"
#include "nn/gradient_clipping.h"
#include "nn/training_state.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

constexpr double clip_norm = 1.0, rope_base = 10000.0;
constexpr std::int64_t warmup_steps = 20;

using Clock = std::chrono::steady_clock;

/// FNV-1a of the text, by which a checkpoint knows it again.
std::string fingerprint(const std::vector<std::uint8_t>& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : text) hash = (hash ^ byte) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, Corpus corpus, CachingAllocator& pool, Device device)
    : options_(options),
      corpus_(std::move(corpus)),
      pool_(pool),
      device_(device),
      generator_(options.seed),
      schedule_{.peak = options.lr, .warmup = std::min(warmup_steps, options.steps / 2), .steps = options.steps} {
  const auto bytes = static_cast<std::int64_t>(corpus_.train.size());
  if (bytes <= options.context)
    throw ValueError(fmt::format("[train] the text is shorter than the context: {} bytes to train on, --context {}",
                                 bytes, options.context));
  if (corpus_.validation.size() < 2) throw ValueError("[train] the text is too short to hold any of it out");
  model_ = std::make_unique<nn::LanguageModel>(options.model(),
                                               options.attention.mixer(options.context, "train", rope_base, 0.0),
                                               nn::ParameterOptions{.device = device, .generator = &generator_});
  optimizer_ = std::make_unique<nn::AdamW>(
      model_->named_parameters(),
      nn::AdamWOptions{.learning_rate = options.lr, .beta2 = 0.95, .weight_decay = 0.1, .decay_matrices_only = true});
  device_allocations_ = pool_.statistics().num_device_alloc;
}

void Trainer::resume(const std::string& path) {
  if (!options_.other_text && nn::read_training_metadata(path)["text"] != fingerprint(corpus_.train))
    throw ValueError("[train] the checkpoint " + path + " was trained on another text (--other-text allows it)");
  const nn::TrainingState state = nn::load_training_state(path, *model_, *optimizer_);
  if (state.step > options_.steps)
    throw ValueError(
        fmt::format("[train] the checkpoint {} has done {} steps, --steps is {}", path, state.step, options_.steps));
  step_ = state.step;
  data_position_ = state.data_position;
  generator_.set_state(state.generator);
}

void Trainer::save(const std::string& path) const {
  nn::TrainingState state{.step = step_,
                          .data_position = data_position_,
                          .generator = generator_.state(),
                          .metadata = options_.configuration()};
  state.metadata["text"] = fingerprint(corpus_.train);
  nn::save_training_state(path, *model_, *optimizer_, state);
}

Trainer::Batch Trainer::batch_at(const std::vector<std::uint8_t>& text, const std::vector<std::int64_t>& starts,
                                 std::int64_t length) const {
  const MemoryScope scope("batch", Category::input);
  std::vector<std::int64_t> tokens, targets;
  for (const std::int64_t start : starts) {
    const auto first = text.begin() + static_cast<std::ptrdiff_t>(start);
    const auto last = first + static_cast<std::ptrdiff_t>(length);
    tokens.insert(tokens.end(), first, last);
    targets.insert(targets.end(), first + 1, last + 1);
  }
  const Shape shape{static_cast<std::int64_t>(starts.size()), length};
  return {from_data(tokens, shape, device_), from_data(targets, shape, device_)};
}

StepRecord Trainer::step() {
  const auto begin = Clock::now();
  pool_.begin_step();
  std::vector<std::int64_t> starts;
  const std::uint64_t last_start = corpus_.train.size() - static_cast<std::size_t>(options_.context);
  for (std::int64_t row = 0; row < options_.batch; ++row)
    starts.push_back(static_cast<std::int64_t>(
        random_below(options_.seed, static_cast<std::uint64_t>(data_position_++), last_start)));
  const Batch batch = batch_at(corpus_.train, starts, options_.context);
  const double tokens = static_cast<double>(batch.tokens.count());

  // The loss is summed and the mean taken by the optimiser's gradient scale: f16 gradients then stay in range.
  StepRecord record{.step = ++step_, .learning_rate = schedule_.rate(step_)};
  {
    const Tensor loss = model_->loss(batch.tokens, batch.targets, true);
    record.loss = loss.item() / tokens;
    const MemoryScope scope("backward", Category::gradient);
    loss.backward();
  }
  record.gradient_norm = nn::gradient_norm(model_->parameters()) / tokens;
  if (!std::isfinite(record.loss) || !std::isfinite(record.gradient_norm))
    throw ValueError(
        fmt::format("[train] step {} diverged: loss {}, gradient norm {}", step_, record.loss, record.gradient_norm));
  optimizer_->set_learning_rate(record.learning_rate);
  optimizer_->step(nn::clip_scale(record.gradient_norm, clip_norm) / tokens);
  optimizer_->zero_grad();

  record.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  record.tokens_per_second = tokens / record.milliseconds * 1e3;
  const Statistics statistics = pool_.statistics();
  record.live_bytes = statistics.allocated_bytes.current;
  record.reserved_bytes = statistics.reserved_bytes.current;
  record.device_allocations = statistics.num_device_alloc - device_allocations_;
  device_allocations_ = statistics.num_device_alloc;
  return record;
}

std::int64_t Trainer::validation_length() const {
  return std::min(options_.context, static_cast<std::int64_t>(corpus_.validation.size()) - 1);
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
    const Batch batch = batch_at(corpus_.validation, starts, length);
    sum += model_->loss(batch.tokens, batch.targets, true).item();
  }
  model_->train();
  return sum / static_cast<double>(windows * length);
}

}  // namespace poolgrad::examples
