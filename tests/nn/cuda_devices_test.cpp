// Two GPUs or emulated devices under a race detector: tensors move between them and the host, and gradients follow. A
// forbidden call throws one sentence, and the next call works.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "nn/module.h"
#include "nn/optimizer.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tensor/graph.h"
#include "tests/gpu/own_stream.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::nn {
namespace {

constexpr Device first{DeviceType::cuda, 0}, second{DeviceType::cuda, 1};

[[maybe_unused]] const bool configured = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
  return true;
}();

std::string error_of(const std::function<void()>& action) { return testing_support::error_of<Error>(action); }

TEST(CudaDevices, CopiesHaveTheSameBitsInEveryDtypeAndLayout) {
  const auto turned = [](const Tensor& tensor) { return tensor.alias({{5, 4, 3}, {1, 5, 20}, 0}); };
  for (const DType from : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8})
    for (const DType into : {from, DType::f32, DType::boolean}) {
      const Tensor x = to(arange(0, 60, 1), from), here = zeros({5, 4, 3}, {into}).copy_from(turned(x));
      const Tensor there = to(x, first);
      Tensor dense = zeros({5, 4, 3}, {into, second}), gaps = zeros({60}, {into, second});
      EXPECT_TRUE(bit_equal(dense.copy_from(turned(there)), here)) << to_string(from) << " to " << to_string(into);
      EXPECT_TRUE(bit_equal(turned(gaps).copy_from(turned(there)), here)) << to_string(from);
    }
  const Tensor empty = zeros({0, 3}, {DType::f32, first});
  EXPECT_EQ(to(empty, second).numel(), 0);
  EXPECT_EQ(to(zeros({3}, {DType::f32, Device{DeviceType::sim, 5}}), second).to_vector<float>(),
            std::vector<float>(3, 0.0f));
}

/// Copies around the host over both devices, with kernels and reuse of memory before and after each. The bits are right
/// for every order of late work.
TEST(CudaDevices, CopiesAreOrderedOnTheStreamsOfBothSides) {
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto value = static_cast<double>(repeat + 1);
    Tensor target = full({1000}, -1.0, {DType::f32, second});
    target = target * target;  // queued on the target's stream, and frees its operand
    Tensor there;
    {
      Tensor x = full({1000}, value, {DType::f32, first});
      x = x + x;
      there = to(x, second);
      target.copy_from(x);
      x.fill(-7.0);  // after the copies
    }
    const Tensor reused = full({1000}, -9.0, {DType::f32, first});
    EXPECT_TRUE(bit_equal(to(there + target, first) + reused, full({1000}, 4 * value - 9))) << "repetition " << repeat;
  }
}

TEST(CudaDevices, UploadsReadTheBytesBeforeLaterWrites) {
  CachingAllocator& pinned = pinned_allocator_for(first);
  std::vector<Tensor> there;
  Tensor here = zeros({700001});  // two pages of pinned memory
  for (int i = 0; i < 30; ++i) {
    here.fill(i);
    there.push_back(to(i % 3 ? here : here.alias({{10}, {2}, 5}), first));
  }
  here.fill(-1);
  EXPECT_GT(pinned.statistics().reserved_bytes.current, 0u);
  EXPECT_GT(pinned.statistics().requests, 30u);
  for (int i = 0; i < 30; ++i)
    EXPECT_TRUE(bit_equal(there[static_cast<std::size_t>(i)], full(there[static_cast<std::size_t>(i)].shape(), i)));
  EXPECT_EQ(pinned.statistics().allocation.current, 0u);
  pinned.trim();
  EXPECT_EQ(pinned.statistics().reserved_bytes.current, 0u);
}

TEST(CudaDevices, AnUnorderedCopyIsReportedAsARace) {
  CachingAllocator& pool = allocator_for(first);
  const testing_support::OwnStream own(first);
  const Stream other = own;
  for (const bool ordered : {false, true}) {
    Tensor x = full({50000}, 3.0, {DType::f32, first});
    if (ordered) pool.order(other, current_stream(first));
    Tensor there;
    const std::string error = error_of([&] {
      const StreamGuard guard(other);
      there = to(x, second);
    });
    if (!ordered) {
      EXPECT_NE(error.find("[touch] stream " + std::to_string(other.id) + " of cuda:0"), std::string::npos) << error;
      synchronize(first);
      continue;
    }
    EXPECT_EQ(error, "no exception");
    x = Tensor();  // the pool knows that the copy still reads it
    const Tensor reused = full({50000}, 5.0, {DType::f32, first});
    EXPECT_TRUE(bit_equal(there, full({50000}, 3.0)));
    EXPECT_TRUE(bit_equal(reused, full({50000}, 5.0)));
  }
}

/// Half of the layers on one device, half on the other; returns loss and gradients.
std::vector<Tensor> pipeline(const Tensor& x, const Tensor& a, const Tensor& b, Device one, Device other) {
  const auto leaf = [](const Tensor& tensor, Device device) { return to(tensor, device).detach().set_requires_grad(); };
  const Tensor in = leaf(x, one), scale = leaf(a, one), shift = leaf(b, other);
  const Tensor half = to(relu(in * scale), other);
  const Tensor out = half * shift + half;
  out.backward(ones_like(out));
  return {to(out.detach(), cpu), in.grad(), scale.grad(), shift.grad()};
}

TEST(CudaDevices, GradientsCrossDevices) {
  Generator generator(test_seed());
  const Tensor x = randn({17, 33}, {}, generator), a = randn({17, 33}, {}, generator),
               b = randn({17, 33}, {}, generator);
  const std::vector<Tensor> expected = pipeline(x, a, b, cpu, cpu), found = pipeline(x, a, b, first, second);
  EXPECT_EQ(found[2].device(), first);
  EXPECT_EQ(found[3].device(), second);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(bit_equal(found[i], expected[i])) << i << "; seed " << test_seed();
}

TEST(CudaDevices, AnOptimizerTakesParametersOfTwoDevices) {
  const auto trained = [](Device one, Device other) {
    const auto parameter = [](double value, Device device) {
      return full({300}, value, {DType::f32, device}).set_requires_grad();
    };
    NamedTensors parameters{{"a", parameter(0.5, one)}, {"b", parameter(-2.0, other)}};
    AdamW optimizer(parameters, {});
    double norm = 0;
    for (int step = 0; step < 3; ++step) {
      for (auto& [name, tensor] : parameters) {
        const Tensor out = tensor * tensor;
        out.backward(ones_like(out));
      }
      norm = gradient_norm({parameters[0].second, parameters[1].second});
      optimizer.step(clip_scale(norm, 1.0));
      optimizer.zero_grad();
    }
    return std::tuple(parameters[0].second.to_vector<float>(), parameters[1].second.to_vector<float>(), norm);
  };
  EXPECT_EQ(trained(first, second), trained(cpu, cpu));
}

// Bad input.

TEST(CudaErrors, TheOperatorNamesMixedDevices) {
  const Tensor a = ones({4, 8}, {DType::f32, first}), b = ones({4, 8}, {DType::f32, second}),
               row = ones({8}, b.options());
  const Tensor index = zeros({4}, {DType::i64, second});
  const std::string operands = ": lhs (4, 8) f32 on cuda:0, rhs (4, 8) f32 on cuda:1";
  EXPECT_EQ(error_of([&] { a + b; }), "[add] operands live on different devices" + operands);
  EXPECT_EQ(error_of([&] { less(a, b); }), "[less] operands live on different devices" + operands);
  const struct {
    const char* op;
    std::function<void()> call;
  } others[] = {
      {"where", [&] { where(less(a, a), a, b); }},         {"cat", [&] { cat({a, b}, 0); }},
      {"layer_norm", [&] { layer_norm(a, row, row); }},    {"embedding", [&] { embedding(a, index); }},
      {"cross_entropy", [&] { cross_entropy(a, index); }}, {"matmul", [&] { matmul(a, transpose(b, 0, 1)); }}};
  for (const auto& [op, call] : others) {
    const std::string error = error_of(call);
    EXPECT_EQ(error.rfind("[" + std::string(op) + "] ", 0), 0u) << error;
    EXPECT_NE(error.find("different devices"), std::string::npos) << error;
    EXPECT_NE(error.find("on cuda:1"), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_TRUE(bit_equal(a + to(b, first), full({4, 8}, 2.0)));
}

TEST(CudaErrors, AnUnsupportedDtypeGivesTheErrorOfTheCpu) {
  const auto errors_on = [](Device device) {
    const Tensor whole = ones({4, 8}, {DType::i64, device}), truth = ones({4, 8}, {DType::boolean, device}),
                 number = ones({4, 8}, {DType::f32, device});
    std::string errors;
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] { exp(whole); }, [&] { softmax(whole, 1); }, [&] { truth + truth; }, [&] { number + whole; },
             [&] { embedding(number, number); }, [&] { layer_norm(whole, {}); },
             [&] { whole.detach().set_requires_grad(); }}) {
      const std::string error = error_of(call);
      EXPECT_EQ(error.rfind('[', 0), 0u) << error;
      errors += error + "\n";
    }
    for (std::size_t at; (at = errors.find(" on " + to_string(device))) != std::string::npos;)
      errors.erase(at, to_string(device).size() + 4);
    return errors;
  };
  EXPECT_EQ(errors_on(first), errors_on(cpu));
}

TEST(CudaErrors, ASmallerBatchTrainsAfterRunningOutOfMemory) {
  constexpr std::int64_t width = 1 << 16;
  enum class Phase { forward, backward, done };
  const auto run = [](Tensor& weight, std::int64_t rows) {
    Phase phase = Phase::forward;
    try {
      Tensor x = expand(weight, {rows, width});
      for (int layer = 0; layer < 4; ++layer) x = tanh(x * weight);
      phase = Phase::backward;
      x.backward(ones_like(x));
      phase = Phase::done;
    } catch (const OutOfMemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
      weight.set_grad({});
    }
    return phase;
  };
  CachingAllocator& pool = allocator_for(first);
  pool.trim();
  pool.set_budget(std::size_t{64} << 20);
  const std::size_t before = pool.statistics().allocated_bytes.current;
  Tensor there = full({width}, 0.5, {DType::f32, first}).set_requires_grad();
  Tensor here = full({width}, 0.5).set_requires_grad();
  bool failed_forward = false, failed_backward = false;
  for (std::int64_t rows = 64; rows > 0; rows -= 4) {  // 64 MiB have room for some 30 tensors of 8 rows
    const Phase phase = run(there, rows);
    failed_forward |= phase == Phase::forward;
    failed_backward |= phase == Phase::backward;
    EXPECT_EQ(pool.statistics().allocated_bytes.current - before,
              width * sizeof(float) * (phase == Phase::done ? 2 : 1))
        << rows << " rows: all but the parameter and its gradient is given back";
    if (phase == Phase::done) {
      EXPECT_EQ(run(here, rows), Phase::done);
      EXPECT_TRUE(allclose(there.grad(), here.grad(), 1e-5, 1e-5));
      break;
    }
  }
  EXPECT_TRUE(failed_forward);
  EXPECT_TRUE(failed_backward);
  pool.set_budget(0);
}

TEST(CudaDevices, ARecordedStepRefusesCopiesToAnotherDevice) {
  const Tensor here = ones({4}, {DType::f32, first}), there = ones({4}, {DType::f32, second});
  Tensor target = zeros({4}, {DType::f32, second});
  for (const bool from : {true, false}) {
    int calls = 0;
    EXPECT_EQ(error_of([&] {
                Graph(first).capture([&] {
                  if (++calls == 2) from ? void(to(there, first)) : void(target.copy_from(here + here));
                });
              }),
              "[copy] a recorded step on cuda:0 cannot copy between devices");
  }
  EXPECT_TRUE(bit_equal(to(there, first) + here, full({4}, 2.0))) << "afterwards they may";
}

TEST(CudaDevices, AGradientScaleServesParametersOfTwoDevices) {
  Tensor p = ones({3}, {DType::f32, first}).set_requires_grad(),
         q = ones({3}, {DType::f32, second}).set_requires_grad();
  p.set_grad(full({3}, 3.0, {DType::f32, first}));
  q.set_grad(full({3}, 4.0, {DType::f32, second}));
  SGD optimizer({{"p", p}, {"q", q}}, {.learning_rate = 1});
  optimizer.step(clip_scale(full({}, 10.0, {DType::f64, first}), 5.0));
  EXPECT_TRUE(bit_equal(p.detach(), full({3}, 1 - 0.5 * 3)));
  EXPECT_TRUE(bit_equal(q.detach(), full({3}, 1 - 0.5 * 4)));
}

}  // namespace
}  // namespace poolgrad::nn
