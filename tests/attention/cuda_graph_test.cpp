// Records a transformer's training step once and replays it, on the emulated device.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "attention/attend.h"
#include "attention/modules/named.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "nn/language_model.h"
#include "nn/optimizer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/graph.h"

namespace poolgrad::attention {
namespace {

constexpr Device graph_device{DeviceType::cuda, 0};

struct TransformerRun {
  TransformerRun()
      : model({.vocabulary = 32, .context = 24, .layers = 1, .width = 16, .heads = 2, .kv_heads = 2},
              dilated_mixer("standard", {.segment_lengths = {8, 16}, .dilation_rates = {1, 2}}),
              {.device = graph_device, .generator = &generator}),
        optimizer(model.named_parameters()),
        tokens(zeros({2, 24}, {DType::i64, graph_device})),
        targets(zeros({2, 24}, {DType::i64, graph_device})) {}
  void next_batch(int number) {
    for (Tensor* each : {&tokens, &targets}) {
      Tensor numbers = zeros({2, 24}, {DType::i64});
      for (std::int64_t i = 0; i < 48; ++i) numbers.data<std::int64_t>()[i] = (i * (number + 3) + number) % 32;
      each->copy_from(numbers);
    }
  }
  void step() {
    loss = model.loss(tokens, targets);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }

  Generator generator{7};
  nn::LanguageModel model;
  nn::AdamW optimizer;
  Tensor tokens, targets, loss;
};

TEST(CudaGraph, ReplaysOfATransformersStepHaveTheBitsOfEagerSteps) {
  TransformerRun eager, replayed;
  Graph graph(graph_device);
  for (int i = 0; i < 4; ++i) {
    eager.next_batch(i);
    replayed.next_batch(i);
    eager.step();
    if (i == 0) {
      graph.capture([&] { replayed.step(); });
      continue;
    }
    graph.replay();
    EXPECT_TRUE(bit_equal(eager.loss, replayed.loss)) << "step " << i;
  }
  const nn::NamedTensors expected = eager.model.named_parameters(), found = replayed.model.named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(bit_equal(expected[i].second, found[i].second)) << expected[i].first;
}

TEST(CudaGraph, AttentionDropsOtherWeightsInEachReplay) {
  Generator numbers(3);
  const auto operand = [&] { return to(randn({2, 33, 2, 16}, {}, numbers), graph_device).set_requires_grad(); };
  const Tensor q = operand(), k = operand(), v = operand();
  Generator eager(5), replayed(5);
  const auto run = [&](Generator& from) {
    const Tensor out = attend(q, k, v, Pattern::causal(), {.dropout = 0.3, .generator = &from}).out;
    std::vector<Tensor> all = grad({sum(square(out))}, {q, k, v});
    all.push_back(out.detach());
    return all;
  };
  Graph graph(graph_device);
  std::vector<Tensor> found, before;
  run(eager);
  graph.capture([&] { found = run(replayed); });
  for (int step = 0; step < 3; ++step) {
    graph.replay();
    const std::vector<Tensor> expected = run(eager);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(bit_equal(found[i], expected[i])) << "replay " << step << ", result " << i;
    EXPECT_FALSE(step > 0 && bit_equal(found.back(), before.back()));
    before.assign(1, found.back().copy());
  }
}

}  // namespace
}  // namespace poolgrad::attention
