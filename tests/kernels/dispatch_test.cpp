#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "allocator/memory/simulated_memory.h"
#include "kernels/cost.h"
#include "kernels/cpu/kernels.h"
#include "kernels/parallel.h"
#include "tests/kernels/test_array.h"

namespace poolgrad::kernels {
namespace {

using namespace testing;

constexpr Stream sim{Device{DeviceType::sim, 3}};

TEST(Dispatch, NamesAMissingKernelOfADevice) {
  TestArray x(DType::f32, {3});
  const std::string reason = cuda::unavailable_reason();
  try {
    gemm(Stream{Device{DeviceType::cuda, 0}}, {.m = 1, .n = 1, .k = 1}, x.view().data, x.view().data, x.view().data);
    FAIL() << "no exception";
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.what(), "[gemm] has no kernel for cuda:0" + (reason.empty() ? " in this build" : ": " + reason));
  }
}

TEST(Dispatch, HasEveryCpuKernel) {
#define POOLGRAD_KERNEL(name) EXPECT_NE(cpu_kernels.name, nullptr);
  POOLGRAD_KERNELS(POOLGRAD_KERNEL)
  POOLGRAD_CPU_KERNELS(POOLGRAD_KERNEL)
#undef POOLGRAD_KERNEL
}

TEST(Dispatch, AdvancesTheClockOfASimulatedDeviceByTheCost) {
  float nothing = 0;  // a sim device does not access it
  const auto fill_elements = [&](std::int64_t count) { fill(sim, View{&nothing, DType::f32, 1, {count}, {1}}, 1); };
  const std::uint64_t start = device_clock(sim.device);
  fill_elements(0);
  const std::uint64_t launch = device_clock(sim.device) - start;
  EXPECT_GT(launch, 0u);
  fill_elements(250'000'000);
  const std::uint64_t memory = device_clock(sim.device) - start - launch;
  EXPECT_GT(memory, 10 * launch);
  EXPECT_EQ(memory, static_cast<std::uint64_t>(Roofline{}.nanoseconds({1e9, 0})));
  EXPECT_EQ(Roofline{}.nanoseconds({1e9, 1e6}), Roofline{}.nanoseconds({1e9, 0}));  // the slower of the two counts
  EXPECT_GT(Roofline{}.nanoseconds({1e9, 1e14}), Roofline{}.nanoseconds({1e9, 0}));
}

TEST(Dispatch, SimulatedKernelsTouchNoMemory) {
  TestArray x(DType::f32, {30, 40}), out(DType::f32, {30, 40}), sum(DType::f32, {1, 40}), index(DType::i64, {30});
  const auto before = out.bytes();
  const std::uint64_t start = device_clock(sim.device);
  unary(sim, UnaryOp::exp, out, x);
  binary(sim, BinaryOp::add, out, x, x);
  copy(sim, out, x);
  fill(sim, out, 1);
  softmax(sim, out, x);
  reduce(sim, ReduceOp::sum, sum, x);
  index_add(sim, out, 0, index, x);
  EXPECT_NO_THROW(check_indices(sim, "op", "index", index, 5));
  EXPECT_EQ(out.bytes(), before);
  EXPECT_GE(static_cast<double>(device_clock(sim.device) - start), 8 * Roofline{}.nanoseconds({}));
}

TEST(Dispatch, AdvancesASimulatedDeviceByTheRoofline) {
  // 4 us to launch, then 3.35 TB/s of memory or 50 Tflop/s.
  EXPECT_EQ(Roofline{}.nanoseconds({}), 4'000);
  EXPECT_NEAR(Roofline{}.nanoseconds({1e9, 0}), 302'507.5, 0.1);
  EXPECT_EQ(Roofline{}.nanoseconds({1e9, 1e14}), 2'000'004'000);
  const std::uint64_t start = device_clock(sim.device);
  gemm(sim, {.m = 100, .n = 100, .k = 100}, nullptr, nullptr, nullptr);
  EXPECT_EQ(device_clock(sim.device) - start, 4'000u + 40u);  // 2 x 100^3 operations; bytes take less
}

TEST(Dispatch, RequestsTheSameWorkspacesFromASimulatedDevice) {
  TestArray x(DType::f32, {3000, 40}), grad(DType::f32, {3000, 40}), dx(DType::f32, {3000, 40}),
      weight(DType::f32, {40});
  TestArray rows(DType::f32, {3000}), dweight(DType::f32, {40}), table(DType::f32, {99, 40}), index(DType::i64, {3000});
  index.zero();
  const auto hash_of = [&](Stream stream) {
    CachingAllocator& pool = allocator_for(stream.device);
    pool.reset_sequence_hash();
    const std::uint64_t requests = pool.statistics().requests;
    layer_norm_backward(stream, dx, dweight, dweight, grad, x, rows, rows, weight);
    rms_norm_backward(stream, dx, dweight, grad, x, rows, weight);
    sum_rows(stream, dweight, x);
    embedding_backward(stream, table, grad, index, -1);
    EXPECT_EQ(pool.statistics().requests - requests, 4u);
    return pool.sequence_hash();
  };
  const std::uint64_t on_cpu = hash_of({});
  set_num_threads(3);
  EXPECT_EQ(hash_of({}), on_cpu);
  set_num_threads(2);
  EXPECT_EQ(hash_of(sim), on_cpu);
}

}  // namespace
}  // namespace poolgrad::kernels
