#include "examples/recall/recall_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "allocator/error.h"
#include "allocator/memory_scope.h"
#include "autograd/operators.h"
#include "examples/support/random.h"
#include "nn/gradient_clipping.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"

namespace poolgrad::examples {

namespace {

constexpr double clip_norm = 1.0;
constexpr std::int64_t warmup_steps = 20;
/// Slow rotations: at base 10,000 keys thousands of tokens away are turned out of recognition.
constexpr double rope_base = 1e6;
/// The usual one instead of 0: two layers find a pair together, and from 0 neither has a gradient before the other.
constexpr double output_deviation = -1.0;

using Clock = std::chrono::steady_clock;

/// Constant after the warm-up, and down to a tenth in the last fifth of the budget.
double learning_rate(double peak, std::int64_t step, double used) {
  const double warmup = std::min(1.0, static_cast<double>(step) / static_cast<double>(warmup_steps));
  return peak * warmup * (1.0 - 0.9 * std::clamp((used - 0.8) / 0.2, 0.0, 1.0));
}

std::int64_t count_right(const Tensor& logits, const std::vector<std::int64_t>& answers) {
  const std::vector<double> values = logits.to_vector<double>();
  const auto width = static_cast<std::ptrdiff_t>(logits.size(1));
  std::int64_t right = 0;
  auto row = values.begin();
  for (const std::int64_t answer : answers) {
    right += std::max_element(row, row + width) - row == answer;
    row += width;
  }
  return right;
}

}  // namespace

std::vector<std::int64_t> scored_distances(std::int64_t distance) {
  std::vector<std::int64_t> result;
  for (std::int64_t d = 32; d < distance; d *= 2) result.push_back(d);
  result.push_back(distance);
  return result;
}

RecallTrainer::RecallTrainer(const RecallOptions& options, const AttentionOptions& attention)
    : options_(options), generator_(options.seed), curriculum_(options.task(), options.seed) {
  const nn::LanguageModelConfig config = options.model();
  model_ = std::make_unique<nn::LanguageModel>(config,
                                               attention.mixer(config.context, "recall", rope_base, output_deviation),
                                               nn::ParameterOptions{.generator = &generator_});
  optimizer_ = std::make_unique<nn::AdamW>(
      model_->named_parameters(), nn::AdamWOptions{.learning_rate = options.lr, .beta2 = 0.95, .weight_decay = 0.0});
}

RecallTrainer::Answers RecallTrainer::answer(const RecallTask& task, std::uint64_t seed, std::int64_t first,
                                             std::int64_t sequences) {
  std::vector<std::int64_t> tokens, rows, targets;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const RecallSequence sequence = make_recall_sequence(task, seed, static_cast<std::uint64_t>(first + s));
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    for (const auto& question : sequence.questions) {
      rows.push_back(s * task.length() + question.position);
      targets.push_back(question.answer);
    }
  }
  Answers result;
  result.asked = static_cast<std::int64_t>(targets.size());
  Tensor batch, asked;
  {
    const MemoryScope scope("batch", Category::input);
    batch = from_data(tokens, {sequences, task.length()});
    asked = from_data(rows, {result.asked});
    result.targets = from_data(targets, {result.asked});
  }
  const Tensor hidden = model_->hidden(batch);
  result.logits = model_->logits_of(index_select(flatten(hidden, 0, 1), 0, asked));
  result.right = count_right(result.logits, targets);
  return result;
}

RecallRecord RecallTrainer::step(double used) {
  const auto begin = Clock::now();
  ++step_;
  const RecallTask& task = curriculum_.task(step_);
  RecallRecord record{.step = step_, .distance = task.distance, .pairs = task.pairs};
  const std::int64_t sequences = std::max<std::int64_t>(1, options_.tokens / task.length());
  {
    const Answers answers = answer(task, options_.seed, drawn_, sequences);
    const Tensor loss = cross_entropy(answers.logits, answers.targets);
    record.loss = loss.item();
    record.accuracy = static_cast<double>(answers.right) / static_cast<double>(answers.asked);
    const MemoryScope scope("backward", Category::gradient);
    loss.backward();
  }
  drawn_ += sequences;
  tokens_ += sequences * task.length();
  const double norm = nn::gradient_norm(model_->parameters());
  if (!std::isfinite(record.loss) || !std::isfinite(norm))
    throw ValueError(fmt::format("[recall] step {} diverged: loss {}, gradient norm {}", step_, record.loss, norm));
  optimizer_->set_learning_rate(learning_rate(options_.lr, step_, used));
  optimizer_->step(nn::clip_scale(norm, clip_norm));
  optimizer_->zero_grad();
  curriculum_.observe(step_, record.accuracy, used);
  record.milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return record;
}

RecallScore RecallTrainer::score(std::int64_t distance, std::int64_t questions) {
  const NoGradGuard no_grad;
  RecallTask task = options_.task();
  task.distance = distance;
  RecallScore result{.distance = distance};
  const std::uint64_t held_out = random_bits(options_.seed, 0);
  model_->eval();
  for (std::int64_t first = 0; result.asked < questions; ++first) {
    const Answers answers = answer(task, held_out, first, 1);
    result.right += answers.right;
    result.asked += answers.asked;
  }
  model_->train();
  return result;
}

}  // namespace poolgrad::examples
