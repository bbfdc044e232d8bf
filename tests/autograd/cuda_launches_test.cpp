// Kernel launches of fused operators, counted on the emulated device, and the bytes of their operands. Each operand is
// read or written once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/optimizer.h"
#include "kernels/profile.h"
#include "tensor/creation.h"
#include "tests/emulation/launch_log.h"

namespace poolgrad {
namespace {

using ::testing::ElementsAre;
using Names = std::vector<std::string>;

constexpr Device device{DeviceType::cuda, 0};
constexpr std::int64_t rows = 64, columns = 512;
constexpr double matrix = rows * columns * 4, row = columns * 4, column = rows * 4;  // bytes in f32

struct Work {
  Names launches;
  double bytes = 0;
};

/// Launches and bytes of `action` on the device.
Work work_of(const std::function<void()>& action) {
  synchronize(device);
  const emulation::LaunchLog log;
  const kernels::KernelProfile profile;
  action();
  synchronize(device);
  Work work{.launches = log.operators()};
  for (const kernels::KernelCall& call : profile.calls()) work.bytes += call.bytes;
  return work;
}

Tensor numbers(const Shape& shape) { return to(randn(shape), device).set_requires_grad(); }

/// The operator's work in forward and backward, for all inputs that require a gradient.
struct BothWays {
  Work forward, backward;
};
BothWays both_ways(const std::function<Tensor(const std::vector<Tensor>&)>& run, const std::vector<Tensor>& inputs) {
  BothWays work;
  Tensor out;
  work.forward = work_of([&] { out = run(inputs); });
  const Tensor seed = ones_like(out);
  work.backward = work_of([&] { grad({out}, inputs, {seed}); });
  return work;
}

TEST(FusedOperators, ReadMemoryOnceInEachDirection) {
  const Tensor x = numbers({rows, columns});
  const struct {
    std::string forward, backward;
    std::function<Tensor(const Tensor&)> run;
    double backward_bytes;
  } operators[] = {
      {"softmax", "softmax_backward", [](const Tensor& in) { return softmax(in); }, 3 * matrix},
      {"log_softmax", "log_softmax_backward", [](const Tensor& in) { return log_softmax(in); }, 3 * matrix},
      {"gelu", "gelu", [](const Tensor& in) { return gelu(in); }, 3 * matrix},
      {"dropout", "dropout", [](const Tensor& in) { return dropout(in, 0.1); }, 2 * matrix},
      {"rope", "rope",
       [](const Tensor& in) {
         return rope(reshape(in, {1, rows, 8, 64}));
       },
       2 * matrix},
  };
  for (const auto& fused : operators) {
    const BothWays work = both_ways([&](const auto& in) { return fused.run(in[0]); }, {x});
    EXPECT_THAT(work.forward.launches, ElementsAre(fused.forward));
    EXPECT_THAT(work.backward.launches, ElementsAre(fused.backward));
    EXPECT_EQ(work.forward.bytes, 2 * matrix) << fused.forward;
    EXPECT_EQ(work.backward.bytes, fused.backward_bytes) << fused.backward;
  }
}

TEST(FusedOperators, NormsReadTheirRowsOnceAndReduceParameterGradientsByChunks) {
  const Tensor x = numbers({rows, columns}), weight = numbers({columns}), bias = numbers({columns});
  const BothWays layer = both_ways([](const auto& in) { return layer_norm(in[0], in[1], in[2]); }, {x, weight, bias});
  EXPECT_THAT(layer.forward.launches, ElementsAre("layer_norm"));
  EXPECT_EQ(layer.forward.bytes, 2 * matrix + 2 * row + 2 * column);
  EXPECT_THAT(layer.backward.launches,
              ElementsAre("layer_norm_backward", "layer_norm_backward", "layer_norm_backward"));
  const BothWays rms = both_ways([](const auto& in) { return rms_norm(in[0], in[1]); }, {x, weight});
  EXPECT_THAT(rms.forward.launches, ElementsAre("rms_norm"));
  EXPECT_THAT(rms.backward.launches, ElementsAre("rms_norm_backward", "rms_norm_backward"));
}

TEST(FusedOperators, CrossEntropyReadsItsLogitsOnceInEachDirection) {
  const Tensor logits = numbers({rows, columns}),
               targets = to(randint(0, columns, {rows}, {.dtype = DType::i64}), device);
  const BothWays work = both_ways([&](const auto& in) { return cross_entropy(in[0], targets); }, {logits});
  const auto own = [](const Work& part, const std::string& name) { return std::ranges::count(part.launches, name); };
  EXPECT_EQ(own(work.forward, "cross_entropy"), 2) << "the targets are looked at first";
  EXPECT_EQ(own(work.backward, "cross_entropy_backward"), 1);
  EXPECT_LT(work.forward.bytes, 1.1 * matrix) << "whatever else there is has an element for a row";
  EXPECT_GT(work.forward.bytes, matrix);
  EXPECT_LT(work.backward.bytes, 2.1 * matrix);
  EXPECT_GT(work.backward.bytes, 2 * matrix);
}

TEST(FusedOperators, AdamWUpdatesManyParametersInOneLaunch) {
  std::vector<Tensor> memory;
  std::vector<kernels::UpdateOperands> all;
  double elements = 0;
  for (std::int64_t i = 0; i < 64; ++i) {
    const Shape shape = {100 + i, 3};
    elements += static_cast<double>(count(shape));
    for (int k = 0; k < 4; ++k) memory.push_back(to(ones(shape), device));
    const auto view = [&](int k) { return memory[memory.size() - 4 + static_cast<std::size_t>(k)].view(); };
    all.push_back({view(0), view(1), {view(2), view(3)}});
  }
  const Work work = work_of([&] { kernels::adamw(current_stream(device), {}, all); });
  EXPECT_THAT(work.launches, ElementsAre("adamw"));
  EXPECT_EQ(work.bytes, 7 * 4 * elements) << "four are read, and three written";
  all.push_back(all.front());
  EXPECT_THAT(work_of([&] { kernels::adamw(current_stream(device), {}, all); }).launches,
              ElementsAre("adamw", "adamw"));
}

}  // namespace
}  // namespace poolgrad
