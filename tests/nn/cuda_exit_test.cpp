// Processes that end while they use devices: with tensors, tapes, streams, events, pinned memory and graphs in static
// storage, and with unfinished work. Each test runs in its own process, which calls exit().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "allocator/caching_allocator.h"
#include "autograd/operators.h"
#include "kernels/elementwise.h"
#include "nn/layers.h"
#include "nn/optimizer.h"
#include "tensor/creation.h"
#include "tensor/graph.h"
#include "tests/emulation/device.h"

namespace poolgrad::nn {
namespace {

constexpr Device gpu{DeviceType::cuda, 0}, other{DeviceType::cuda, 1};

[[maybe_unused]] const bool two_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  return true;
}();

/// Static objects. `before` is destroyed after the objects that the first use of a device makes, and `after` before
/// them.
struct Kept {
  std::vector<Tensor> tensors;
  std::optional<Linear> layer;
  std::optional<AdamW> optimizer;
  std::optional<Graph> graph;
};

template <class Use>
[[noreturn]] void use_and_exit(const Use& use) {
  std::fflush(stdout);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // the test reads stderr
  static Kept before;
  zeros({1}, {DType::f32, gpu});
  zeros({1}, {DType::f32, other});
  static Kept after;
  use(before, after);
  std::exit(0);
}

class CudaExit : public ::testing::Test {
 protected:
  CudaExit() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  template <class Use>
  void expect_silence(const Use& use) {
    EXPECT_EXIT(use_and_exit(use), ::testing::ExitedWithCode(0), ::testing::IsEmpty());
  }
};

TEST_F(CudaExit, IsSilentAfterFinishedWork) {
  expect_silence([](Kept& before, Kept& after) {
    for (Kept* kept : {&before, &after}) {
      kept->tensors.push_back(to(ones({3000, 100}), gpu) * 2.0);
      kept->tensors.push_back(to(kept->tensors[0], other));
    }
    synchronize(gpu);
    synchronize(other);
  });
}

TEST_F(CudaExit, IsSilentWithPendingWork) {
  expect_silence([](Kept& before, Kept& after) {
    CachingAllocator& pool = allocator_for(gpu);
    const Stream side{gpu, 5};
    for (Kept* kept : {&before, &after}) {
      const Tensor x = to(ones({700001}), gpu);  // through two pages of pinned memory
      kept->tensors.push_back(exp(x));
      pool.order(side, current_stream(gpu));
      const StreamGuard guard(side);
      kept->tensors.push_back(softmax(x, 0));
      pool.use(x.view().data, side);  // x is freed here, and its block waits for an event
    }
    before.tensors.push_back(to(after.tensors[0], other));
    after.tensors.push_back(to(before.tensors[0], other));
  });
}

TEST_F(CudaExit, IsSilentWithAnUnusedTape) {
  expect_silence([](Kept& before, Kept& after) {
    for (Kept* kept : {&before, &after}) {
      kept->layer.emplace(20, 30, LinearOptions{}, ParameterOptions{.device = gpu});
      kept->tensors.push_back(sum(gelu((*kept->layer)(ones({4, 20}, {DType::f32, gpu})))));
      kept->optimizer.emplace(kept->layer->named_parameters());
    }
    before.tensors[0].backward();
    before.optimizer->step();
  });
}

TEST_F(CudaExit, IsSilentDuringGraphReplays) {
  expect_silence([](Kept& before, Kept& after) {
    for (Kept* kept : {&before, &after}) {
      kept->layer.emplace(20, 30, LinearOptions{}, ParameterOptions{.device = gpu});
      kept->optimizer.emplace(kept->layer->named_parameters());
      kept->tensors.resize(1);
      kept->graph.emplace(gpu);
      const Tensor x = ones({4, 20}, {DType::f32, gpu});
      kept->graph->capture([&, x] {
        kept->tensors[0] = sum(gelu((*kept->layer)(x)));
        kept->tensors[0].backward();
        kept->optimizer->step();
        kept->optimizer->zero_grad();
      });
      for (int i = 0; i < 3; ++i) kept->graph->replay();
    }
    static Tensor last = before.tensors[0] + after.tensors[0];  // values of both graphs, when one graph is destroyed
  });
}

TEST_F(CudaExit, IsSilentAfterAnEndedThread) {
  expect_silence([](Kept& before, Kept& after) {
    std::thread([&] {
      before.tensors.push_back(ones({5000}, {DType::f32, gpu}) * 3.0);
      after.tensors.push_back(exp(before.tensors[0]));
    }).join();
    before.tensors.push_back(after.tensors[0] + before.tensors[0]);
  });
}

TEST_F(CudaExit, IsSilentWithUnreportedErrors) {
  expect_silence([](Kept& before, Kept& after) {
    after.tensors.push_back(embedding(ones({4, 8}, {DType::f32, gpu}), full({3}, 9.0, {DType::i64, gpu})));
    emulation::device(1).enqueue("failing", current_stream(other).id, [] { throw Error("nobody hears of it"); });
    before.tensors.push_back(ones({5000}, {DType::f32, gpu}) * 3.0);
    before.tensors.push_back(ones({5000}, {DType::f32, other}));
  });
}

}  // namespace
}  // namespace poolgrad::nn
