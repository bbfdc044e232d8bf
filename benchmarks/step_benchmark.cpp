// One training step (forward, backward, AdamW) of four small language models: LayerNorm, learned positions, causal
// attention, GELU (tanh), biases, tied head. Activations are f32 or bf16, parameters f32. --device=cuda:0 measures a
// GPU, adds a long context, and repeats each step as a recorded one (tensor/graph.h).
//
//   step_benchmark                                         the four, as Google Benchmark shows them
//   step_benchmark --serve B T C L H V [dtype [recorded]]  waits for lines; answers each with a step's milliseconds
//   step_benchmark --serve B T C L H V dtype mqar          the same on the task mqar, with the loss of its answers
//   step_benchmark --save FILE B T C L H V dtype mqar      writes data, parameters, "loss" and gradients "d NAME"
//
// benchmarks/peers/step.py and layers.py use the second form to alternate with PyTorch.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "autograd/operators.h"
#include "benchmarks/support.h"
#include "nn/optimizer.h"
#include "nn/tasks/sequence_task.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tensor/graph.h"
#include "tensor/safetensors.h"

namespace {

using namespace poolgrad;

Device device;  // --device

struct Shape6 {
  std::int64_t batch, context, width, layers, heads, vocabulary;
};

class Step {
 public:
  Step(const Shape6& s, DType dtype)
      : model_(attention::make_language_model({.vocabulary = s.vocabulary,
                                               .context = s.context,
                                               .layers = s.layers,
                                               .width = s.width,
                                               .heads = s.heads,
                                               .kv_heads = s.heads,
                                               .norm = nn::NormKind::layer_norm,
                                               .positions = nn::Positions::learned,
                                               .tied_head = true,
                                               .biases = true,
                                               .dtype = dtype},
                                              attention::Pattern::causal(), {.device = device})),
        optimizer_(model_->named_parameters(), {.learning_rate = 1e-3}),
        tokens_(randint(0, s.vocabulary, {s.batch, s.context}, {DType::i64, device})),
        targets_(randint(0, s.vocabulary, {s.batch, s.context}, {DType::i64, device})) {}

  /// Replaces the data by sequences of mqar with T / 8 pairs (Zoology), whose answers alone have a loss.
  void take_mqar() {
    const std::int64_t batch = tokens_.size(0), context = tokens_.size(1);
    const nn::TaskKind& kind = nn::parse_task_kind("mqar");
    const nn::SequenceTask task{.kind = &kind,
                                .distance = context / 2,
                                .pairs = context / 8,
                                .keys = kind.keys,
                                .values = kind.values,
                                .spacing = 1,
                                .align = 1};
    std::vector<std::int64_t> tokens, asked, answers;
    for (std::int64_t b = 0; b < batch; ++b) {
      const nn::TaskSequence sequence = task.make(1, static_cast<std::uint64_t>(b));
      tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
      for (const auto& question : sequence.questions) {
        asked.push_back(b * context + question.position);
        answers.push_back(question.answer);
      }
    }
    const auto count = static_cast<std::int64_t>(asked.size());
    tokens_ = from_data(tokens, {batch, context}, device);
    asked_ = from_data(asked, {count}, device);
    targets_ = from_data(answers, {count}, device);
  }

  void save(const std::string& path) {
    SafetensorsFile file{.tensors = {{"tokens", tokens_}, {"asked", asked_}, {"targets", targets_}}, .metadata = {}};
    for (const auto& [name, parameter] : model_->named_parameters()) {  // some start at 0 and hide errors of others
      const NoGradGuard guard;
      Tensor(parameter).copy_from(randn(parameter.shape(), parameter.options()) * 0.1);
    }
    const Tensor value = loss();
    value.backward();
    file.tensors.emplace_back("loss", value.detach());
    for (const auto& [name, parameter] : model_->named_parameters()) {
      file.tensors.emplace_back(name, parameter.detach());
      file.tensors.emplace_back("d " + name, parameter.grad());
    }
    save_safetensors(path, file);
  }

  void run() { graph_ ? graph_->replay() : run_eagerly(); }
  /// Records a step, which run() then replays.
  void record() {
    graph_.emplace(device).capture([&] { run_eagerly(); });
  }
  /// Returns the reserved bytes of the recorded step's own pool.
  std::size_t recorded_bytes() const { return graph_ ? graph_->statistics().reserved_bytes.current : 0; }

 private:
  Tensor loss() {
    if (!asked_.defined()) return model_->loss(tokens_, targets_);
    return linear_cross_entropy(index_select(flatten(model_->hidden(tokens_), 0, 1), 0, asked_),
                                model_->parameters().front(), targets_);  // the embedding is the head
  }
  void run_eagerly() {
    loss().backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

  std::unique_ptr<nn::LanguageModel> model_;
  nn::AdamW optimizer_;
  Tensor tokens_, targets_, asked_;  // asked_: rows of the batch with a target; undefined: all
  std::optional<Graph> graph_;
};

void training_step(benchmark::State& state, DType dtype, bool recorded) {
  const Shape6 shape{state.range(0), state.range(1), state.range(2), state.range(3), state.range(4), state.range(5)};
  Step step(shape, dtype);
  for (int i = 0; i < 3; ++i) step.run();
  CachingAllocator& pool = allocator_for(device);
  pool.reset_peaks();
  if (recorded) step.record();
  time_calls(state, device, [&] { step.run(); });
  state.SetItemsProcessed(state.iterations() * shape.batch * shape.context);
  state.counters["peak_live_MiB"] = static_cast<double>(pool.statistics().allocated_bytes.peak) / (1 << 20);
  if (recorded) state.counters["recorded_MiB"] = static_cast<double>(step.recorded_bytes()) / (1 << 20);
}

void four_models(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "T", "C", "L", "H", "V"})->Unit(benchmark::kMillisecond)->UseRealTime();
  if (small_sizes()) {
    benchmark->Args({1, 16, 32, 1, 2, 16});
    return;
  }
  benchmark->Args({12, 64, 128, 4, 4, 65})
      ->Args({8, 256, 192, 4, 6, 256})
      ->Args({1, 2048, 128, 4, 4, 256})
      ->Args({8, 512, 256, 6, 4, 256});
  if (device.is_cuda()) benchmark->Args({1, 16384, 512, 6, 8, 256});
}

void register_all() {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool recorded : {false, true}) {
      if (recorded && !device.is_cuda()) continue;
      const std::string name = "training_step/" + std::string(to_string(dtype)) + (recorded ? "/recorded" : "");
      four_models(benchmark::RegisterBenchmark(name.c_str(), training_step, dtype, recorded));
    }
}

/// Returns VmRSS (now) or VmHWM (peak) of this process, in MiB.
double resident_mebibytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == field + ":") {
      double kibibytes = 0;
      file >> kibibytes;
      return kibibytes / 1024;
    }
  return 0;
}

std::unique_ptr<Step> step_of(char** numbers, const char* dtype, std::string_view how) {
  std::int64_t s[6];
  for (int i = 0; i < 6; ++i) s[i] = std::atoll(numbers[i]);
  auto step = std::make_unique<Step>(Shape6{s[0], s[1], s[2], s[3], s[4], s[5]}, parse_dtype(dtype));
  if (how == "mqar") step->take_mqar();
  if (how == "recorded") step->record();
  return step;
}

int serve(char** numbers, const char* dtype, std::string_view how) {
  const double before = resident_mebibytes("VmRSS");
  const auto owner = step_of(numbers, dtype, how);
  Step& step = *owner;
  return serve_lines(
      [&] {
        step.run();
        synchronize(device);
      },
      [&] {
        char memory[64];
        const std::size_t peak = allocator_for(device).statistics().allocated_bytes.peak + step.recorded_bytes();
        std::snprintf(memory, sizeof memory, " %.1f %.1f", static_cast<double>(peak) / (1 << 20),
                      resident_mebibytes("VmHWM") - before);
        return std::string(memory);
      });
}

}  // namespace

int main(int argc, char** argv) {
  device = take_device(argc, argv);
  if (argc >= 8 && argc <= 10 && std::strcmp(argv[1], "--serve") == 0)
    return serve(argv + 2, argc > 8 ? argv[8] : "f32", argc > 9 ? argv[9] : "");
  if (argc == 11 && std::strcmp(argv[1], "--save") == 0) {
    step_of(argv + 3, argv[9], argv[10])->save(argv[2]);
    return 0;
  }
  register_all();
  return run_benchmarks(argc, argv);
}
