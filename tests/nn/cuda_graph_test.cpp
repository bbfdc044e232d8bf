// Training steps that are recorded once and replayed, on a GPU or the emulated device.
#include "tensor/graph.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/stream_capture.h"
#include "autograd/engine/engine.h"
#include "autograd/memory/checkpoint.h"
#include "autograd/operators.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/gpu/own_stream.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::nn {
namespace {

constexpr Device gpu{DeviceType::cuda, 0};

/// Two layers, an optimizer of either kind, and data on the device.
struct Trained {
  Trained(std::uint64_t seed, bool adam, bool decays_all = true)
      : generator(seed),
        up(12, 33, {}, {.device = gpu, .generator = &generator}),
        down(33, 7, {}, {.device = gpu, .generator = &generator}),
        x(to(randn({5, 12}, {}, generator), gpu)),
        target(zeros({5}, {DType::i64, gpu})) {
    NamedTensors all = up.named_parameters();
    for (auto& [name, tensor] : down.named_parameters()) all.emplace_back("down." + name, tensor);
    if (adam)
      optimizer = std::make_unique<AdamW>(all, AdamWOptions{.decay_matrices_only = !decays_all});
    else
      optimizer = std::make_unique<SGD>(all, SGDOptions{.momentum = 0.9, .dampening = 0.3});
    parameters = all;
  }
  void step() {
    loss = cross_entropy(down(gelu(up(x))), target);
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  void next_batch(int number) {
    Generator data(test_seed(), static_cast<std::uint64_t>(number));
    x.copy_from(to(randn({5, 12}, {}, data), gpu));
  }

  Generator generator;
  Linear up, down;
  std::unique_ptr<Optimizer> optimizer;
  NamedTensors parameters;
  Tensor x, target, loss;
};

std::string error_of(const std::function<void()>& action) { return testing_support::error_of<Error>(action); }

TEST(Graph, ReplaysOfATrainingStepHaveTheBitsOfEagerSteps) {
  for (const bool adam : {true, false}) {
    Trained eager(1, adam, false), replayed(1, adam, false);
    Graph graph(gpu);
    for (int i = 0; i < 6; ++i) {
      for (Trained* each : {&eager, &replayed}) {
        each->next_batch(i);
        each->optimizer->set_learning_rate(0.01 / (i + 1));
      }
      eager.step();
      if (i == 0)
        graph.capture([&] { replayed.step(); });
      else
        graph.replay();
      EXPECT_TRUE(i == 0 || bit_equal(eager.loss, replayed.loss)) << "step " << i;
      EXPECT_EQ(replayed.optimizer->steps(), i + 1);
    }
    EXPECT_EQ(replayed.optimizer->parameter_steps(), eager.optimizer->parameter_steps());
    for (std::size_t i = 0; i < eager.parameters.size(); ++i)
      EXPECT_TRUE(bit_equal(eager.parameters[i].second, replayed.parameters[i].second))
          << eager.parameters[i].first << (adam ? ", adamw" : ", sgd");
    eager.step();
    replayed.step();  // the run continues eagerly after replays
    EXPECT_TRUE(bit_equal(eager.loss, replayed.loss));
  }
}

TEST(Graph, ReplaysOfMasterWeightStepsHaveTheBitsOfEagerSteps) {
  struct Half {
    Tensor p = full({300}, 0.7, {DType::bf16, gpu}).set_requires_grad();
    AdamW optimizer{{{"p", p}}, {}};
    void step() {
      const Tensor out = p * p;
      out.backward(ones_like(out));
      optimizer.step();
      optimizer.zero_grad();
    }
  } eager, replayed;
  Graph graph(gpu);
  graph.capture([&] { replayed.step(); });
  for (int i = 0; i < 5; ++i) graph.replay();
  for (int i = 0; i < 6; ++i) eager.step();
  EXPECT_TRUE(bit_equal(eager.p, replayed.p));
  for (std::size_t i = 0; i < eager.optimizer.state().size(); ++i)
    EXPECT_TRUE(bit_equal(eager.optimizer.state()[i].second, replayed.optimizer.state()[i].second));
  {
    const NoGradGuard no_grad;
    replayed.p.fill(1);
  }
  EXPECT_EQ(error_of([&] { graph.replay(); }),
            "[optimizer] p was written between replays of a recorded step, which its f32 master cannot adopt: (300,) "
            "bf16 on cuda:0");
  EXPECT_EQ(replayed.optimizer.steps(), 6);
}

/// Six steps, one eager and five replayed, have the bits of six eager steps.
template <class Optimizer, class Options>
void expect_replays_of_eager_steps(const Options& options) {
  struct Run {
    explicit Run(const Options& o) : optimizer({{"p", p}, {"q", q}}, o) {}
    void step() {
      const Tensor out = square(p) * q;
      out.backward(ones_like(out));
      optimizer.step();
      optimizer.zero_grad();
    }
    Tensor p = full({30, 20}, 0.7, {DType::f32, gpu}).set_requires_grad();
    Tensor q = full({20}, -0.3, {DType::f32, gpu}).set_requires_grad();
    Optimizer optimizer;
  } eager(options), replayed(options);
  Graph graph(gpu);
  for (int i = 0; i < 6; ++i) {
    for (Run* run : {&eager, &replayed}) run->optimizer.set_learning_rate(0.01 / (i + 1));
    eager.step();
    if (i == 0)
      graph.capture([&] { replayed.step(); });
    else
      graph.replay();
  }
  EXPECT_TRUE(bit_equal(eager.p, replayed.p));
  for (std::size_t i = 0; i < eager.optimizer.state().size(); ++i)
    EXPECT_TRUE(bit_equal(eager.optimizer.state()[i].second, replayed.optimizer.state()[i].second));
}

TEST(Graph, ReplaysOfAdamRMSpropAndAdafactorHaveTheBitsOfEagerSteps) {
  expect_replays_of_eager_steps<Adam>(AdamOptions{.weight_decay = 0.1, .amsgrad = true});
  expect_replays_of_eager_steps<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true});
  expect_replays_of_eager_steps<Adafactor>(AdafactorOptions{.weight_decay = 0.1});
}

TEST(Graph, ReplaysDrawTheRandomNumbersOfEagerSteps) {
  for (const std::int64_t count : {1, 64, 1001}) {
    Generator eager(5), replayed(5);
    Graph graph(gpu);
    const Tensor x = full({3, count}, 2.0, {DType::f32, gpu});
    const auto draw = [&](Generator& from) {
      return std::vector{randn({7, count}, {DType::f32, gpu}, from), rand({count}, -1, 1, {DType::f64, gpu}, from),
                         dropout(x, 0.25, from), dropout(x, 0.5, from, SequencePart{1, count + 2})};
    };
    std::vector<Tensor> found;
    for (int step = 0; step < 4; ++step) {
      if (step == 3) eager.set_state({9, 1, 77}), replayed.set_state({9, 1, 77});
      const std::vector<Tensor> expected = draw(eager);
      if (step == 0)
        graph.capture([&] { found = draw(replayed); });
      else
        graph.replay();
      EXPECT_EQ(replayed.state().offset, eager.state().offset) << "recording takes nothing, a replay as much as a step";
      for (std::size_t i = 0; step > 0 && i < expected.size(); ++i)
        EXPECT_TRUE(bit_equal(found[i], expected[i])) << "step " << step << ", result " << i << ", " << count;
    }
  }
}

TEST(Graph, ARecomputationDrawsTheSameNumbersInAReplay) {
  Generator eager(5), replayed(5);
  Tensor x = full({40, 30}, 2.0, {DType::f32, gpu}).set_requires_grad();
  const auto gradient = [&](Generator& from) {
    const Tensor y = checkpoint([&](const Tensor& z) { return square(dropout(z, 0.5, from)); }, x);
    return grad({sum(y)}, {x})[0];
  };
  Graph graph(gpu);
  Tensor found;
  gradient(eager);
  graph.capture([&] { found = gradient(replayed); });
  for (int step = 0; step < 2; ++step) {
    graph.replay();
    EXPECT_TRUE(bit_equal(found, gradient(eager))) << "replay " << step;
  }
}

TEST(Graph, TheSharedPoolNeverServesMemoryOfTheGraph) {
  Trained model(2, true);
  CachingAllocator& shared = allocator_for(gpu);
  const std::size_t budget = shared.budget();
  std::optional<Graph> graph(std::in_place, gpu);
  graph->capture([&] { model.step(); });
  EXPECT_EQ(shared.budget() + graph->statistics().reserved_bytes.current, budget) << "both share the device";
  EXPECT_GT(graph->statistics().reserved_bytes.current, 0u);
  EXPECT_EQ(&allocator_for(gpu), &shared);
  EXPECT_FALSE(shared.owns(model.loss.storage()->data()));
  graph->replay();
  const double before = model.loss.item();
  std::vector<Tensor> others;
  for (int i = 0; i < 200; ++i) others.push_back(full({1 << (i % 14)}, -7.0, {DType::f32, gpu}));
  for (const Tensor& other : others) EXPECT_TRUE(shared.owns(other.storage()->data()));
  EXPECT_EQ(model.loss.item(), before);
  const auto used = graph->statistics().requests;
  for (int i = 0; i < 3; ++i) graph->replay();
  EXPECT_EQ(graph->statistics().requests, used) << "a replay asks for nothing";
  for (std::size_t i = 0; i < others.size(); ++i)
    EXPECT_TRUE(bit_equal(others[i], full({1 << (i % 14)}, -7.0))) << "and writes to nobody's memory";
  const double last = model.loss.item();
  graph.reset();
  EXPECT_EQ(model.loss.item(), last) << "who still has a tensor of it keeps it";
  model.loss = Tensor();
  const Graph sweeps(gpu);
  EXPECT_EQ(shared.budget(), budget);
}

TEST(Graph, QueuedReadsKeepMemoryAlive) {
  for (const bool outlives : {false, true}) {
    Tensor result, y;
    std::optional<Graph> graph(std::in_place, gpu);
    graph->capture([&] { y = full({1000}, 3.0, {DType::f32, gpu}) * 2.0; });
    graph->replay();
    result = y + 1.0;
    if (outlives) graph.reset();
    y = Tensor();
    graph.reset();
    const Graph sweeps(gpu);
    EXPECT_TRUE(bit_equal(result, full({1000}, 7.0))) << outlives;
  }
}

TEST(Graph, PerThreadStreamReadsKeepMemoryAlive) {
  for (int repeat = 0; repeat < 10; ++repeat) {
    Tensor y;
    std::optional<Graph> graph(std::in_place, gpu);
    graph->capture([&] { y = full({1000}, 3.0, {DType::f32, gpu}) * 2.0; });
    std::promise<void> queued, gone;
    std::thread reader([&] {
      const StreamGuard guard({gpu, per_thread_stream});
      graph->replay();
      const Tensor result = y + 1.0;
      y = Tensor();
      queued.set_value();
      gone.get_future().wait();
      EXPECT_TRUE(bit_equal(result, full({1000}, 7.0)));
    });
    queued.get_future().wait();
    graph.reset();
    gone.set_value();
    reader.join();
  }
}

TEST(Graph, KeepsTensorsThatTheStepReleases) {
  CachingAllocator& shared = allocator_for(gpu);
  Tensor x = full({1000}, 3.0, {DType::f32, gpu}), out = zeros({1000}, {DType::f32, gpu});
  int calls = 0;
  const auto allocated = [&] { return shared.statistics().allocated_bytes.current; };
  const std::size_t before = allocated();
  {
    Graph graph(gpu);
    graph.capture([&] {
      if (++calls == 1) return;
      out.copy_from(x + x);
      x = Tensor();  // the graph reads it
    });
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(allocated(), before);
    const Tensor reused = full({1000}, -1.0, {DType::f32, gpu});
    out.fill(0);
    graph.replay();
    EXPECT_TRUE(bit_equal(out, full({1000}, 6.0)));
  }
  EXPECT_LT(allocated(), before);
}

TEST(Graph, IsOrderedOnTheReplayingStream) {
  const Tensor x = zeros({1000}, {DType::f32, gpu}), y = zeros({1000}, {DType::f32, gpu});
  Graph graph(gpu);
  graph.capture([&] { Tensor(y).copy_from(y + x * x); });
  for (int repeat = 1; repeat <= 40; ++repeat) {
    Tensor(y).fill(1);
    Tensor(x).fill(repeat);
    graph.replay();
    graph.replay();
    Tensor(x).fill(-1000);  // after both replays
    EXPECT_TRUE(bit_equal(y, full({1000}, 1 + 2.0 * repeat * repeat))) << "repetition " << repeat;
  }
}

TEST(Graph, AnExceptionDuringCaptureLeavesAllUsable) {
  Trained model(3, true), other(3, true);
  CachingAllocator& shared = allocator_for(gpu);
  const std::size_t budget = shared.budget(), allocated = shared.statistics().allocated_bytes.current;
  Graph graph(gpu);
  for (const bool recorded : {false, true}) {
    int calls = 0;
    EXPECT_EQ(error_of([&] {
                graph.capture([&] {
                  const Tensor part = gelu(model.up(model.x));
                  if (++calls == (recorded ? 2 : 1)) throw ValueError("[step] enough");
                });
              }),
              "[step] enough");
    EXPECT_EQ(StreamCapture::current(), nullptr);
    EXPECT_EQ(Graph::recording(), nullptr);
    EXPECT_FALSE(StreamCapture::covers(graph.stream()));
    EXPECT_EQ(shared.statistics().allocated_bytes.current, allocated);
    EXPECT_EQ(error_of([&] { graph.replay(); }), "[graph] nothing is recorded: capture() comes before replay()");
  }
  EXPECT_LE(shared.budget(), budget);
  graph.capture([&] { model.step(); });
  graph.replay();
  for (int i = 0; i < 2; ++i) other.step();
  EXPECT_TRUE(bit_equal(model.loss, other.loss));
}

TEST(Graph, RefusesUnrecordableActionsInOneSentence) {
  const Tensor x = ones({4, 4}, {DType::f32, gpu});
  const Tensor here = ones({4, 4});
  Graph graph(gpu), second(gpu);
  const auto error_when_recorded = [&](const std::function<void()>& action) {
    int calls = 0;
    return error_of([&] {
      graph.capture([&] {
        if (++calls == 2) action();
      });
    });
  };
  const std::string copy = "[copy] a recorded step on cuda:0 cannot ";
  EXPECT_EQ(error_when_recorded([&] { sum(x).item(); }), copy + "be read by the host");
  EXPECT_EQ(error_when_recorded([&] { to(here, gpu); }),
            copy + "copy from the host, because replays would not read the host memory again");
  EXPECT_EQ(error_when_recorded([&] { second.capture([] {}); }),
            "[graph] a step is being recorded in this thread already");
  EXPECT_EQ(error_when_recorded([&] { allocator_for(gpu).trim(); }), "no exception");
  EXPECT_EQ(error_when_recorded([&] { synchronize(gpu); }), "[synchronize] the stream is being recorded");
  EXPECT_NE(error_when_recorded([&] {
              zeros({std::int64_t{1} << 40}, {DType::f32, gpu});
            }).find("out of memory"),
            std::string::npos);
  setenv("POOLGRAD_SYNC", "1", 1);
  EXPECT_EQ(error_of([&] { graph.capture([] {}); }),
            "[graph] POOLGRAD_SYNC=1 waits for every launch, which a recorded step cannot do");
  unsetenv("POOLGRAD_SYNC");
  EXPECT_EQ(error_of([&] { Graph(Device{}); }), "[graph] only CUDA devices record work, got cpu");
  EXPECT_EQ(error_when_recorded([&] { x + x; }), "no exception");
  graph.replay();
}

TEST(Graph, ARefusedWaitDoesNotBreakTheRecording) {
  const Tensor x = full({1000}, 2.0, {DType::f32, gpu}), out = zeros({1000}, {DType::f32, gpu});
  const testing_support::OwnStream own;
  const Stream side = own;
  Graph graph(gpu);
  int refused = 0;
  const auto wait = [&](Stream stream) {
    const StreamGuard guard(stream);
    refused += error_of([&] { synchronize(gpu); }) == "[synchronize] the stream is being recorded" ? 1 : 0;
  };
  graph.capture([&] {
    CachingAllocator& pool = allocator_for(gpu);
    pool.order(side, graph.stream());
    for (const Stream stream : {graph.stream(), side}) wait(stream);
    Tensor(out).copy_from(x * 3.0);
    pool.order(graph.stream(), side);
  });
  EXPECT_EQ(refused, 2) << "when it is recorded";
  graph.replay();
  EXPECT_TRUE(bit_equal(out, full({1000}, 6.0)));
}

TEST(Graph, ReusesTheCachedMemoryOfTheEagerStep) {
  CachingAllocator& shared = allocator_for(gpu);
  shared.trim();
  const std::size_t budget = shared.budget(), live = shared.statistics().reserved_bytes.current;
  shared.set_budget(live + (std::size_t{96} << 20));
  const Tensor out = zeros({1}, {DType::f32, gpu});
  Graph graph(gpu);
  graph.capture([&] {  // 64 MiB, and the budget holds only one such tensor
    const Tensor large = full({16 << 20}, 2.0, {DType::f32, gpu});
    Tensor(out).copy_from(slice(large, 0, 0, 1) * 3.0);
  });
  Tensor(out).fill(0);
  graph.replay();
  EXPECT_EQ(out.item(), 6.0);
  shared.set_budget(budget - graph.statistics().reserved_bytes.current);
}

TEST(Graph, ATrimDuringCaptureKeepsRecordedMemory) {
  const Tensor x = full({1 << 20}, 2.0, {DType::f32, gpu}), out = zeros({1 << 20}, {DType::f32, gpu});
  Graph graph(gpu);
  graph.capture([&] {
    Tensor(out).copy_from(x * x + x);  // 4 MiB each
    allocator_for(gpu).trim();
    const Tensor larger = zeros({3 << 20}, {DType::f32, gpu});
  });
  for (int repeat = 0; repeat < 3; ++repeat) {
    Tensor(x).fill(repeat);
    graph.replay();
    EXPECT_TRUE(bit_equal(out, full({1 << 20}, 1.0 * repeat * repeat + repeat)));
  }
}

TEST(Graph, RecordsForkedStreams) {
  const Tensor x = full({1000}, 2.0, {DType::f32, gpu}), out = zeros({1000}, {DType::f32, gpu});
  const testing_support::OwnStream own;
  const Stream side = own;
  Graph graph(gpu);
  graph.capture([&] {
    CachingAllocator& pool = allocator_for(gpu);
    pool.order(side, graph.stream());
    Tensor half;
    {
      const StreamGuard guard(side);
      half = x * 3.0;
    }
    const Tensor other = x + 1.0;
    pool.order(graph.stream(), side);
    Tensor(out).copy_from(half + other);
  });
  for (int repeat = 0; repeat < 20; ++repeat) {
    Tensor(x).fill(repeat);
    graph.replay();
    EXPECT_TRUE(bit_equal(out, full({1000}, 4.0 * repeat + 1))) << "repetition " << repeat;
  }
}

}  // namespace
}  // namespace poolgrad::nn
