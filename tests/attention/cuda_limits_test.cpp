// attend() on two emulated devices: refused calls with the CPU's messages, programs shared between threads, and live
// bytes after memory runs out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "attention/attend.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "kernels/schedule/device_program.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/emulation/device.h"
#include "tests/mma_allowed.h"
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

/// Calls f() with warps and with warpgroups.
template <class F>
void by_both(const F& f) {
  for (const bool warpgroups : {false, true}) {
    SCOPED_TRACE(warpgroups ? "by warpgroups" : "by warps");
    const WarpgroupsAllowed allowed(warpgroups);
    f();
  }
}

// A dimension of size 1 may have any stride. A tile of 64 rows must not read the 63 missing rows, nor use their
// misaligned address.
TEST(CudaAttendOfOneRow, AcceptsAnyRowStride) {
  const auto odd_row = [](const Tensor& row) {  // the same numbers; a single row gets an odd stride
    const Tensor wide = zeros({1, 5, 1, 17}, row.options());
    Tensor part = slice(slice(wide, 3, 0, 16), 1, 0, 1);
    part.copy_from(row);
    return part;
  };
  Generator random(3);
  const TensorOptions half{DType::bf16, first_gpu};
  const Tensor row = randn({1, 1, 1, 16}, half, random), many = randn({1, 40, 1, 16}, half, random);
  const auto results = [&](const Tensor& q, const Tensor& k, const Tensor& dout) {
    std::vector<Tensor> x{q, k, k};
    for (Tensor& leaf : x) leaf = leaf.detach().set_requires_grad();
    const Tensor out = attend(x[0], x[1], x[2]).out;
    std::vector<Tensor> found = grad({out}, x, {dout});
    found.push_back(out.detach());
    return found;
  };
  by_both([&] {
    for (const bool one_key : {false, true}) {
      const Tensor &q = one_key ? many : row, &k = one_key ? row : many;
      const std::vector<Tensor> want = results(q, k, q),
                                got = results(one_key ? q : odd_row(q), one_key ? odd_row(k) : k,
                                              one_key ? q : odd_row(q));
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(max_difference(want[i], got[i]), 0.0) << i;
    }
  });
}

// Results that fit f16 are right even if their intermediate sums exceed its largest number.
TEST(CudaAttendOfF16, ScoreGradientsMayExceedTheLargestF16) {
  Generator random(4);
  const auto f16 = [&](const Shape& shape, double scale) {
    return to(randn(shape, {DType::f64}, random) * scale, DType::f16);
  };
  const std::vector<Tensor> x{f16({1, 4, 2, 64}, 1e-3), f16({1, 4, 1, 64}, 1e-3), f16({1, 4, 1, 64}, 1e3)};
  const Tensor dout = f16({1, 4, 2, 64}, 2e3);
  const auto gradients = [&](const std::function<Tensor(const Tensor&)>& there) {
    std::vector<Tensor> leaves;
    for (const Tensor& one : x) leaves.push_back(there(one).detach().set_requires_grad());
    return grad({attend(leaves[0], leaves[1], leaves[2], Pattern::causal()).out}, leaves, {there(dout)});
  };
  const std::vector<Tensor> want = gradients([](const Tensor& one) { return to(one, DType::f64); });
  by_both([&] {
    const std::vector<Tensor> got = gradients([](const Tensor& one) { return to(one, first_gpu); });
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_LE(relative_error(to(to(got[i], cpu), DType::f64), want[i]), 2e-3) << i;
  });
}

TEST(CudaAttendErrors, EqualThoseOfTheCpu) {
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

/// Gradients of a function of `count` tensors (1, rows, 2, 64), in a budget of 4 MiB.
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

  /// Runs out of memory in the forward, with fewer rows in the backward, and then trains with the CPU's results.
  void expect_to_train_on() {
    CachingAllocator& pool = allocator_for(first_gpu);
    const auto live = [&] {
      pool.trim();  // releases the programs of patterns
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
      EXPECT_TRUE(allclose(found[i], gradients[i], 1e-4, 1e-4)) << "operand " << i << ", " << rows << " rows";
    pool.set_budget(0);
  }
};

constexpr Stream own_stream{first_gpu, per_thread_stream};

/// A call with its operands on the GPU.
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
    EXPECT_TRUE(allclose(to(found.out, cpu), attend(to(q, cpu), to(k, cpu), to(v, cpu), pattern).out, 1e-5, 1e-5));
  }
};

TEST(CudaAttendOnOwnStreams, ThreadsDoNotUseProgramsBeforeTheirCopyEnds) {
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

TEST(CudaAttendOnOwnStreams, ALaterThreadDoesNotUseTheProgramsOfAnEndedOne) {
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

TEST(CudaOutOfMemory, ASmallerBatchTrainsAfterAnAttentionBackward) {
  SmallMemory{3, [](const std::vector<Tensor>& x) { return attend(x[0], x[1], x[2], Pattern::window(9, 0)).out; }}
      .expect_to_train_on();
}

TEST(CudaOutOfMemory, ASmallerBatchTrainsAfterAMatmulBackward) {
  SmallMemory{2,
              [](const std::vector<Tensor>& x) {
                const Tensor weight = to(full({64, 64}, 0.01), x[0].device());
                return matmul(matmul(x[0] * x[1], weight), weight);
              }}
      .expect_to_train_on();
}

}  // namespace
}  // namespace poolgrad::attention
