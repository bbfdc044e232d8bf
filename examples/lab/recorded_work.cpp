#include "examples/lab/recorded_work.h"

#include "allocator/memory_scope.h"
#include "attention/attend.h"
#include "attention/language_model.h"
#include "autograd/operators.h"
#include "examples/support/train.h"
#include "nn/training/random.h"
#include "tensor/creation.h"

namespace poolgrad::examples {

namespace {

using Done = std::function<void(std::int64_t)>;

TrainOptions model_of_size(const RecordedWork& work) {
  TrainOptions options;
  options.steps = work.steps;
  if (work.size == "small") {
    options.context = 256;
    options.width = 64;
    options.attention.window = 64;
  } else if (work.size == "large") {
    options.layers = 6;
    options.width = 256;
    options.heads = 8;
    options.kv_heads = 2;
    options.batch = 2;
  }
  return options;
}

nn::Corpus made_up_text(std::int64_t bytes) {
  nn::Corpus corpus;
  for (std::int64_t i = 0; i < bytes; ++i)
    corpus.train.push_back(static_cast<std::uint8_t>(' ' + nn::random_below(1, static_cast<std::uint64_t>(i), 96)));
  corpus.validation.assign(corpus.train.begin(), corpus.train.begin() + 64);
  return corpus;
}

void train_steps(const RecordedWork& work, const Done& done) {
  const TrainOptions options = model_of_size(work);
  Generator generator(options.seed);
  const auto trainer = options.make_trainer(made_up_text(2 * options.context + 64), work.device, generator);
  for (std::int64_t step = 1; step <= work.steps; ++step) {
    trainer->step();
    done(step);
  }
}

void attention_passes(const RecordedWork& work, const Done& done) {
  const std::int64_t length = work.size == "small" ? 128 : work.size == "large" ? 4096 : 1024;
  const std::int64_t heads = work.size == "small" ? 2 : 4;
  Generator generator(1);
  for (std::int64_t step = 1; step <= work.steps; ++step) {
    work.pool.begin_step();
    // Lengths differ, as those of batches of text do.
    const auto seed = static_cast<std::uint64_t>(step);
    const std::int64_t n =
        length / 2 + static_cast<std::int64_t>(nn::random_below(2, seed, static_cast<std::uint64_t>(length / 2)));
    const TensorOptions options{.device = work.device};
    const auto input = [&](const char* name, Category category, std::int64_t head_count) {
      const MemoryScope scope(name, category);
      return randn({1, n, head_count, 32}, options, generator).set_requires_grad();
    };
    const Tensor q = input("query", Category::query, heads), k = input("key", Category::key, heads / 2),
                 v = input("value", Category::value, heads / 2);
    const auto pattern = step % 2 ? attention::Pattern::causal() : attention::Pattern::window(64, 0);
    const Tensor loss = sum(attention::attend(q, k, v, pattern).out);
    const MemoryScope scope("backward", Category::gradient);
    loss.backward();
    done(step);
  }
}

void generate(const RecordedWork& work, const Done& done) {
  TrainOptions options = model_of_size(work);
  Generator generator(1);
  const auto model = attention::make_language_model(options.model(), options.pattern(),
                                                    {.device = work.device, .generator = &generator});
  model->eval();
  work.pool.begin_step();
  nn::sample_text(*model, "int main() {\n", work.steps, 0.8, 1, work.device);
  done(work.steps);
}

}  // namespace

const std::vector<std::string>& recorded_workloads() {
  static const std::vector<std::string> names = {"train", "attention", "generate"};
  return names;
}

void perform(const std::string& workload, const RecordedWork& work, const std::function<void(std::int64_t)>& done) {
  if (workload == "train") return train_steps(work, done);
  if (workload == "attention") return attention_passes(work, done);
  generate(work, done);
}

}  // namespace poolgrad::examples
