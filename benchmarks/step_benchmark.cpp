// One training step - forward, backward, AdamW - of four small language models: LayerNorm, learned positions, causal
// attention, GELU (tanh), biases, tied head; activations in f32 and in bf16, parameters in f32.
//
//   step_benchmark                              the four, as Google Benchmark shows them
//   step_benchmark --serve B T C L H V [dtype]  waits for lines; answers each with the milliseconds of one step
//
// benchmarks/peers/step.py uses the second form to alternate with PyTorch.
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "allocator/caching_allocator.h"
#include "attention/modules/multihead.h"
#include "benchmarks/support.h"
#include "nn/optimizer.h"
#include "tensor/creation.h"

namespace {

using namespace poolgrad;

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
                                              attention::Pattern::causal())),
        optimizer_(model_->named_parameters(), {.learning_rate = 1e-3}),
        tokens_(randint(0, s.vocabulary, {s.batch, s.context})),
        targets_(randint(0, s.vocabulary, {s.batch, s.context})) {}

  void run() {
    model_->loss(tokens_, targets_).backward();
    optimizer_.step();
    optimizer_.zero_grad();
  }

 private:
  std::unique_ptr<nn::LanguageModel> model_;
  nn::AdamW optimizer_;
  Tensor tokens_, targets_;
};

void training_step(benchmark::State& state, DType dtype) {
  const Shape6 shape{state.range(0), state.range(1), state.range(2), state.range(3), state.range(4), state.range(5)};
  Step step(shape, dtype);
  for (int i = 0; i < 3; ++i) step.run();
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  for (auto _ : state) step.run();
  state.SetItemsProcessed(state.iterations() * shape.batch * shape.context);
  state.counters["peak_live_MiB"] = static_cast<double>(pool.statistics().allocated_bytes.peak) / (1 << 20);
}

void four_models(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"B", "T", "C", "L", "H", "V"})
      ->Args({12, 64, 128, 4, 4, 65})
      ->Args({8, 256, 192, 4, 6, 256})
      ->Args({1, 2048, 128, 4, 4, 256})
      ->Args({8, 512, 256, 6, 4, 256})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}
BENCHMARK_CAPTURE(training_step, f32, DType::f32)->Apply(four_models);
BENCHMARK_CAPTURE(training_step, bf16, DType::bf16)->Apply(four_models);

/// VmRSS (now) or VmHWM (peak) of this process, in MiB.
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

int serve(char** numbers, const char* dtype) {
  std::int64_t s[6];
  for (int i = 0; i < 6; ++i) s[i] = std::atoll(numbers[i]);
  const double before = resident_mebibytes("VmRSS");
  Step step({s[0], s[1], s[2], s[3], s[4], s[5]}, parse_dtype(dtype));
  return serve_lines([&] { step.run(); },
                     [&] {
                       char memory[64];
                       const Statistics statistics = allocator_for(cpu).statistics();
                       std::snprintf(memory, sizeof memory, " %.1f %.1f",
                                     static_cast<double>(statistics.allocated_bytes.peak) / (1 << 20),
                                     resident_mebibytes("VmHWM") - before);
                       return std::string(memory);
                     });
}

}  // namespace

int main(int argc, char** argv) {
  if ((argc == 8 || argc == 9) && std::strcmp(argv[1], "--serve") == 0)
    return serve(argv + 2, argc == 9 ? argv[8] : "f32");
  return run_benchmarks(argc, argv);
}
