// attend() on two emulated devices: what it refuses, in the CPU's words, what threads have of each other's programs,
// and what is left where memory runs out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "allocator/caching_allocator.h"
#include "allocator/emulation/device.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/schedule/device_program.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;

constexpr Device first_gpu{DeviceType::cuda, 0}, second_gpu{DeviceType::cuda, 1};

[[maybe_unused]] const bool two_gpus = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  return true;
}();

TEST(CudaAttendErrors, NameTheDevicesOfAllOperands) {
  const Tensor here = zeros({1, 4, 2, 8}, {.device = first_gpu}), there = zeros({1, 4, 2, 8}, {.device = second_gpu});
  EXPECT_EQ(error_of<DeviceError>([&] { attend(here, there, here); }),
            "[attend] operands live on different devices: q (1, 4, 2, 8) f32 on cuda:0, k (1, 4, 2, 8) f32 on cuda:1, "
            "v (1, 4, 2, 8) f32 on cuda:0");
  EXPECT_EQ(error_of<DeviceError>(
                [&] { attend(here, here, here, Pattern::dense(), {.sinks = zeros({2}, {.device = second_gpu})}); }),
            "[attend] operands live on different devices: q (1, 4, 2, 8) f32 on cuda:0, k (1, 4, 2, 8) f32 on cuda:0, "
            "v (1, 4, 2, 8) f32 on cuda:0, sinks (2,) f32 on cuda:1");
  EXPECT_EQ(error_of<DeviceError>([&] {
              attend(here, here, here, Pattern::dense(),
                     {.key_padding = zeros({1, 4}, {.dtype = DType::boolean, .device = second_gpu})});
            }),
            "[attend] operands live on different devices: q (1, 4, 2, 8) f32 on cuda:0, key_padding (1, 4) bool on "
            "cuda:1");
  EXPECT_EQ(attend(there, there, there).out.device(), second_gpu);
}

TEST(CudaAttendErrors, AreThoseOfTheCpu) {
  const auto errors_on = [](Device device) {
    const auto x = [&](DType dtype, const Shape& shape = {1, 4, 2, 8}) { return zeros(shape, {dtype, device}); };
    const Tensor good = x(DType::f32);
    std::string errors;
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] { attend(x(DType::i64), x(DType::i64), x(DType::i64)); }, [&] { attend(good, good, x(DType::bf16)); },
             [&] {
               attend(good, good, good, Pattern::dense(), {.bias = x(DType::i32, {1, 1, 4, 4})});
             },
             [&] { attend(good, good, good, Pattern::dense(), {.alibi = x(DType::i64, {2})}); },
             [&] { attend(good, good, good, Pattern::dense(), {.sinks = x(DType::boolean, {2})}); },
             [&] {
               attend(good, good, good, Pattern::dense(), {.key_padding = x(DType::f32, {1, 4})});
             }})
      errors += error_of<DTypeError>(call) + "\n";
    for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
             [&] {
               attend(good, x(DType::f32, {1, 5, 1, 8}), x(DType::f32, {1, 4, 1, 8}));
             },
             [&] {
               attend(good, good, good, Pattern::dense(), {.bias = x(DType::f32, {1, 3, 4, 4})});
             }})
      errors += error_of<ShapeError>(call) + "\n";
    for (std::size_t at; (at = errors.find(" on " + to_string(device))) != std::string::npos;)
      errors.erase(at, to_string(device).size() + 4);
    return errors;
  };
  EXPECT_EQ(errors_on(first_gpu), errors_on(cpu));
  EXPECT_EQ(errors_on(first_gpu).rfind("[attend] ", 0), 0u);
}

enum class Phase { forward, backward, done };

/// Gradients of a function of `count` tensors (1, rows, 2, 64), of which 4 MiB have room for few.
struct SmallMemory {
  int count;
  std::function<Tensor(const std::vector<Tensor>&)> function;
  std::vector<Tensor> gradients = {};

  Phase run(Device device, std::int64_t rows) {
    Phase phase = Phase::forward;
    try {
      Generator generator(5);
      std::vector<Tensor> leaves;
      for (int i = 0; i < count; ++i)
        leaves.push_back(to(randn({1, rows, 2, 64}, {}, generator), device).set_requires_grad());
      const Tensor out = function(leaves), along = ones_like(out);
      phase = Phase::backward;
      gradients = grad({out}, leaves, {along});
      for (Tensor& x : gradients) x = to(x, cpu);
      phase = Phase::done;
    } catch (const OutOfMemoryError& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
    }
    return phase;
  }

  /// It fails in the forward, with fewer rows in the backward, and then trains on as the CPU does.
  void expect_to_train_on() {
    CachingAllocator& pool = allocator_for(first_gpu);
    const auto live = [&] {
      pool.trim();  // programs of patterns
      return pool.statistics().requested_bytes.current;
    };
    const std::uint64_t before = live();
    pool.set_budget(std::size_t{4} << 20);
    bool failed[2] = {};
    std::int64_t rows = 3328;
    for (Phase phase; (phase = run(first_gpu, rows)) != Phase::done; rows -= 256) {
      ASSERT_GT(rows, 256);
      failed[static_cast<int>(phase)] = true;
      EXPECT_EQ(live(), before) << rows << " rows";
    }
    EXPECT_TRUE(failed[0]) << "in the forward";
    EXPECT_TRUE(failed[1]) << "in the backward";
    const std::vector<Tensor> found = std::move(gradients);
    EXPECT_EQ(run(cpu, rows), Phase::done);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(all_close(found[i], gradients[i], 1e-4, 1e-4)) << "operand " << i << ", " << rows << " rows";
    pool.set_budget(0);
  }
};

constexpr Stream own_stream{first_gpu, per_thread_stream};

/// A call with operands that are there.
struct CallOnGpu {
  Tensor q = to(normal_of(1), first_gpu), k = to(normal_of(2), first_gpu), v = to(normal_of(3), first_gpu);
  Pattern pattern;
  Attended found;

  explicit CallOnGpu(Pattern of) : pattern(std::move(of)) { synchronize(first_gpu); }
  static Tensor normal_of(std::uint64_t seed) {
    Generator generator(seed);
    return randn({1, 70, 2, 8}, {}, generator);
  }
  void run() { found = attend(q, k, v, pattern); }
  void expect_definition() const {
    EXPECT_TRUE(all_close(to(found.out, cpu), attend(to(q, cpu), to(k, cpu), to(v, cpu), pattern).out, 1e-5, 1e-5));
  }
};

TEST(CudaAttendOnOwnStreams, ThreadsDoNotUseProgramsThatOthersHaveNotCopiedYet) {
  const Pattern pattern = Pattern::dilated({16, 64}, {1, 2});
  emulation::Device& device = emulation::device(0);
  const StreamGuard guard(own_stream);
  CallOnGpu call(pattern);
  const std::shared_ptr<bool> held = device.hold(own_stream.id);
  call.run();
  std::thread([&] {
    const StreamGuard own(own_stream);
    CallOnGpu there(pattern);
    there.run();
    there.expect_definition();
  }).join();
  device.let_go(*held);
  call.expect_definition();
}

TEST(CudaAttendOnOwnStreams, ALaterThreadDoesNotUseTheProgramsOfOneThatHasEnded) {
  kernels::AttentionSchedule schedule;
  schedule.queries = schedule.keys = kernels::PositionMap::contiguous(70);
  const auto program = [&] { return kernels::program_on_device(own_stream, schedule, 64); };
  std::shared_ptr<const kernels::DeviceProgram> ended;
  std::thread([&] {
    ended = program();
    EXPECT_EQ(program(), ended);
  }).join();
  std::thread([&] { EXPECT_NE(program(), ended); }).join();
}

TEST(CudaMemoryRunsOut, InTheBackwardOfAttentionAndASmallerBatchTrainsOn) {
  SmallMemory{3, [](const std::vector<Tensor>& x) { return attend(x[0], x[1], x[2], Pattern::window(9, 0)).out; }}
      .expect_to_train_on();
}

TEST(CudaMemoryRunsOut, InTheBackwardOfProductsAndASmallerBatchTrainsOn) {
  SmallMemory{2,
              [](const std::vector<Tensor>& x) {
                const Tensor weight = to(full({64, 64}, 0.01), x[0].device());
                return matmul(matmul(x[0] * x[1], weight), weight);
              }}
      .expect_to_train_on();
}

}  // namespace
}  // namespace poolgrad::attention
