#include "allocator/replay/zoo/generators.h"
#include "allocator/replay/zoo/transformer.h"

namespace poolgrad::zoo {

void transformer(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 24, .width = 2048});
  for (int step = 0; step < 10; ++step) model.step(4, 2048);
}

void alternating_batches(WorkloadBuilder& out) {
  // The last batch of an epoch is smaller, and a tuner tries larger ones.
  Transformer model(out, {.layers = 16, .width = 1536, .heads = 12});
  for (const std::size_t batch : {8u, 8u, 5u, 8u, 3u, 7u, 8u, 5u, 6u, 8u, 3u, 8u}) model.step(batch, 1000);
}

void variable_lengths(WorkloadBuilder& out) {
  // Batches are padded to their longest sequence.
  Transformer model(out, {.layers = 12, .width = 1024});
  CounterRandom random(1);
  for (int step = 0; step < 24; ++step) model.step(8, random.between(96, 2048));
}

void checkpointing(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 32, .width = 2560, .heads = 20, .checkpointing = true});
  for (int step = 0; step < 8; ++step) model.step(8, 2048);
}

void optimizer_start(WorkloadBuilder& out) {
  // States appear behind the activations of the first step, and gradients are accumulated over micro-batches.
  Transformer model(out, {.layers = 20, .width = 1600, .heads = 25});
  for (int step = 0; step < 5; ++step) {
    out.step();
    for (const std::size_t batch : {2u, 2u, 1u}) model.accumulate(batch, 1024);
    model.update();
  }
}

void evaluation(WorkloadBuilder& out) {
  Transformer model(out, {.layers = 16, .width = 1280, .heads = 20});
  CounterRandom random(2);
  for (int round = 0; round < 4; ++round) {
    for (int step = 0; step < 3; ++step) model.step(8, 1024);
    for (int batch = 0; batch < 4; ++batch) model.evaluate(12, 1024);
    // A sample is written: one token more each time.
    const std::size_t prompt = random.between(16, 128);
    for (std::size_t token = 0; token < 24; ++token) model.evaluate(1, prompt + token);
  }
}

void example_training(WorkloadBuilder& out) {
  // examples/train with its defaults, but a batch of 16: f32, two layers, no master copies.
  Transformer model(out, {.layers = 2,
                          .width = 128,
                          .heads = 4,
                          .vocabulary = 256,
                          .element = 4,
                          .master_copies = false,
                          .fused_optimizer = true});
  for (int step = 0; step < 40; ++step) model.step(16, 4096);
}

}  // namespace poolgrad::zoo
