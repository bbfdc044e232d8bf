// One training step (forward, backward, AdamW) of four small language models: LayerNorm, learned positions, causal
// attention, GELU (tanh), biases, tied head. Activations are f32 or bf16, parameters f32. --device=cuda:0 measures a
// GPU, adds a long context, and repeats each step as a recorded one (tensor/graph.h).
//
//   step_benchmark                                         the four, as Google Benchmark shows them
//   step_benchmark --serve B T C L H V [dtype [recorded]]  waits for lines; answers each with a step's milliseconds
//
// benchmarks/peers/step.py uses the second form to alternate with PyTorch.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "benchmarks/support.h"
#include "nn/optimizer.h"
#include "tensor/creation.h"
#include "tensor/graph.h"

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

  void run() { graph_ ? graph_->replay() : run_eagerly(); }
  /// Records a step, which run() then replays.
  void record() {
    graph_.emplace(device).capture([&] { run_eagerly(); });
  }
  /// Returns the reserved bytes of the recorded step's own pool.
  std::size_t recorded_bytes() const { return graph_ ? graph_->statistics().reserved_bytes.current : 0; }

 private:
  void run_eagerly() {
    model_->loss(tokens_, targets_).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

  std::unique_ptr<nn::LanguageModel> model_;
  nn::AdamW optimizer_;
  Tensor tokens_, targets_;
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

int serve(char** numbers, const char* dtype, bool recorded) {
  std::int64_t s[6];
  for (int i = 0; i < 6; ++i) s[i] = std::atoll(numbers[i]);
  const double before = resident_mebibytes("VmRSS");
  Step step({s[0], s[1], s[2], s[3], s[4], s[5]}, parse_dtype(dtype));
  if (recorded) step.record();
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
    return serve(argv + 2, argc > 8 ? argv[8] : "f32", argc > 9 && std::strcmp(argv[9], "recorded") == 0);
  register_all();
  return run_benchmarks(argc, argv);
}
