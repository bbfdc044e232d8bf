#include "attention/modules/buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/attend.h"
#include "attention/modules/named.h"
#include "autograd/operators.h"
#include "kernels/instruction_sets.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/attention/modules/gathered_dilated.h"
#include "tests/tensor/support.h"
#include "tests/test_seed.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

std::uint64_t device_allocations() { return allocator_for(cpu).statistics().num_device_alloc; }

/// Makes q, k and v in their categories and calls the core once.
void call_once(AttentionCore& core, std::int64_t length, bool training, DType dtype = DType::f32) {
  const auto made = [&](Category category) {
    const MemoryScope scope("test", category);
    Tensor x = Tensor::empty({2, length, 4, 32}, {.dtype = dtype});
    x.fill(0.25);
    return x.set_requires_grad(training);
  };
  const Tensor q = made(Category::query), k = made(Category::key), v = made(Category::value);
  const GradModeGuard mode(training);
  const Tensor out = core(q, k, v, {.causal = true});
  if (!training) return;
  const MemoryScope scope("test", Category::gradient);
  out.backward(ones_like(out));
}

TEST(PreallocateBuffers, SparesTheFirstCallEveryDeviceAllocation) {
  ImprovedDilatedAttention core({512, 1024}, {1, 2});
  for (const bool training : {false, true})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      allocator_for(cpu).trim();
      const std::uint64_t cold = device_allocations();
      EXPECT_GT(preallocate_buffers(2, 1500, 4, 32, dtype, cpu, {.training = training}), 0u);
      const std::uint64_t warm = device_allocations();
      EXPECT_GT(warm, cold);
      for (int call = 0; call < 3; ++call) call_once(core, 1500, training, dtype);
      EXPECT_EQ(device_allocations(), warm) << (training ? "training" : "inference");
    }
}

/// attend() allocates no device memory after preallocate_buffers().
void expect_enough(std::int64_t queries, std::int64_t keys, std::int64_t width, DType dtype, bool training,
                   const Pattern& pattern = Pattern::causal()) {
  allocator_for(cpu).trim();
  preallocate_buffers(1, queries, 4, width, dtype, cpu, {.kv_heads = 1, .key_length = keys, .training = training});
  const std::uint64_t warm = device_allocations();
  const auto made = [&](std::int64_t length, std::int64_t heads) {
    return Tensor::empty({1, length, heads, width}, {.dtype = dtype}).fill(0.1).set_requires_grad(training);
  };
  const Tensor out = attend(made(queries, 4), made(keys, 1), made(keys, 1), pattern).out;
  if (training) out.backward(ones_like(out));
  EXPECT_EQ(device_allocations(), warm) << describe(out) << (training ? " training " : " ")
                                        << kernels::instruction_set() << " " << pattern.to_string();
}

TEST(PreallocateBuffers, CoversScratchOfEveryWidthDtypeAndInstructionSet) {
  for (const std::string_view set : kernels::instruction_sets()) {
    kernels::set_instruction_set(set);
    for (const bool training : {false, true})
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        if (set == "emulated_bf16" && dtype != DType::bf16) continue;
        for (const std::int64_t width : {8, 64, 256}) expect_enough(300, 300, width, dtype, training);
        expect_enough(1, 9000, 32, dtype, training);  // few queries split the keys
      }
  }
  kernels::set_instruction_set("auto");
}

TEST(PreallocateBuffers, CoversScratchOfSinglePassPatterns) {
  const std::int64_t length = 600;
  for (const Pattern& pattern :
       {Pattern::dense(), Pattern::window(64, 0), Pattern::dilated({128}, {4}), Pattern::dilated_sparse(32),
        Pattern::random_blocks(32, 0.3), Pattern::causal() & Pattern::global_local(32, 64, 2)})
    for (const bool training : {false, true})
      for (const DType dtype : {DType::f32, DType::bf16}) expect_enough(length, length, 32, dtype, training, pattern);
}

/// Small calls, where one page matters: the pool expects keys, other blocks lie between free ones, and operands are
/// made in either order.
void expect_enough_for_random_calls(std::uint64_t seed) {
  std::mt19937_64 draw(seed);
  const auto from = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int call = 0; call < 600; ++call) {
    const std::int64_t batch = from(1, 2), kv_heads = from(1, 2), heads = kv_heads * from(1, 4), width = 8 * from(1, 3);
    const std::int64_t queries = from(1, 300), keys = draw() % 2 ? queries : from(1, 300);
    const bool training = draw() % 2;
    const DType dtype = std::array{DType::f64, DType::f32, DType::bf16}[draw() % 3];
    std::vector<Tensor> earlier;
    for (std::int64_t n = from(0, 200); n > 0; --n) Tensor::empty({batch, keys, kv_heads, width}, {.dtype = dtype});
    for (std::int64_t n = from(0, 3); n > 0; --n) earlier.push_back(Tensor::empty({from(1, 30000)}, {}));
    if (draw() % 2) earlier.clear();
    allocator_for(cpu).trim();
    preallocate_buffers(batch, queries, heads, width, dtype, cpu,
                        {.kv_heads = kv_heads, .key_length = keys, .training = training});
    const std::uint64_t warm = device_allocations();
    std::array<Tensor, 3> operands;
    const Shape shapes[] = {
        {batch, queries, heads, width}, {batch, keys, kv_heads, width}, {batch, keys, kv_heads, width}};
    const bool values_first = draw() % 2;
    for (std::size_t n = 0; n < 3; ++n) {
      const std::size_t i = values_first ? 2 - n : n;
      operands[i] = Tensor::empty(shapes[i], {.dtype = dtype}).fill(0.1).set_requires_grad(training);
    }
    const Tensor out = attend(operands[0], operands[1], operands[2], Pattern::causal()).out;
    if (training) out.backward(ones_like(out));
    ASSERT_EQ(device_allocations(), warm)
        << describe(operands[0]) << describe(operands[2]) << ", call " << call << ", seed " << seed;
  }
}

TEST(PreallocateBuffers, IsEnoughForRandomSequencesOfCalls) {
  for (const std::uint64_t seed : {std::uint64_t{2723410310}, test_seed()}) expect_enough_for_random_calls(seed);
}

TEST(PreallocateBuffers, AColdFirstCallAllocatesFromTheDevice) {
  ImprovedDilatedAttention core({512, 1024}, {1, 2});
  allocator_for(cpu).trim();
  const std::uint64_t cold = device_allocations();
  call_once(core, 1500, true);
  EXPECT_GT(device_allocations(), cold);
}

TEST(PreallocateBuffers, ReturnsAllBuffersToThePool) {
  const std::uint64_t before = allocator_for(cpu).statistics().allocated_bytes.current;
  preallocate_buffers(2, 1000, 4, 32, DType::f32, cpu, {.training = true});
  EXPECT_EQ(allocator_for(cpu).statistics().allocated_bytes.current, before);
}

TEST(PreallocateBuffers, ReportsTheBytesOfTheFormula) {
  const std::size_t rows = 2 * 100 * 4;  // batch, length, heads
  EXPECT_EQ(preallocate_buffers(2, 100, 4, 32), 4 * rows * 32 * 4 + rows * 4);
  EXPECT_EQ(preallocate_buffers(2, 100, 4, 32, DType::bf16), 4 * rows * 32 * 2 + rows * 4);
  EXPECT_EQ(preallocate_buffers(2, 100, 4, 32, DType::f32, cpu, {.training = true}), 8 * rows * 32 * 4 + 2 * rows * 4);
  const std::size_t kv = 2 * 60 * 2;
  EXPECT_EQ(preallocate_buffers(2, 100, 4, 32, DType::f32, cpu, {.kv_heads = 2, .key_length = 60, .value_width = 16}),
            (rows * 32 + kv * 32 + kv * 16 + rows * 16 + rows) * 4);
  EXPECT_EQ(preallocate_buffers(0, 100, 4, 32), 0u);
}

TEST(PreallocateBuffers, WorksOnSimulatedDevices) {
  configure_simulated_device(6, std::size_t{64} << 20);
  const Device sim{DeviceType::sim, 6};
  EXPECT_GT(preallocate_buffers(1, 1000, 8, 64, DType::bf16, sim, {.training = true}), 0u);
  EXPECT_EQ(allocator_for(sim).statistics().allocated_bytes.current, 0u);
  EXPECT_THROW(preallocate_buffers(1, 1000000, 8, 64, DType::bf16, sim), OutOfMemoryError);
  EXPECT_EQ(allocator_for(sim).statistics().allocated_bytes.current, 0u);
}

TEST(PreallocateBuffers, CoversTheSplitF32OperandsOfAGpu) {
  configure_simulated_device(5, std::size_t{512} << 20);
  const Device sim{DeviceType::sim, 5};
  preallocate_buffers(2, 3000, 4, 64, DType::f32, sim, {.training = true});
  const auto made = [&] { return allocator_for(sim).statistics().num_device_alloc; };
  const auto warm = made();
  const auto operand = [&](Category category) {
    const MemoryScope scope("test", category);
    return Tensor::empty({2, 3000, 4, 64}, {.device = sim}).set_requires_grad();
  };
  const Tensor q = operand(Category::query), k = operand(Category::key), v = operand(Category::value);
  const Tensor out = attend(q, k, v, Pattern::causal()).out;
  const MemoryScope scope("test", Category::gradient);
  out.backward(ones_like(out));
  EXPECT_EQ(made(), warm);
}

TEST(PreallocateBuffers, NamesTheInvalidArgument) {
  EXPECT_EQ(error_of<ValueError>([] { preallocate_buffers(1, -5, 4, 32); }),
            "[preallocate_buffers] sizes must not be negative: -5");
  EXPECT_EQ(error_of<ValueError>([] { preallocate_buffers(1, 8, 3, 32, DType::f32, cpu, {.kv_heads = 2}); }),
            "[preallocate_buffers] heads are not a multiple of kv_heads: heads 3, kv_heads 2");
  EXPECT_THAT(error_of<DTypeError>([] { preallocate_buffers(1, 8, 3, 32, DType::i32); }), HasSubstr("not a floating"));
}

TEST(BufferStats, CountsRequestsAndHitsByKind) {
  ImprovedDilatedAttention core({64}, {1});
  preallocate_buffers(2, 300, 4, 32);
  const BufferStatistics before = buffer_stats();
  for (int call = 0; call < 4; ++call) call_once(core, 300, false);
  const BufferStatistics after = buffer_stats();
  for (const Category kind : {Category::query, Category::key, Category::value}) {
    EXPECT_EQ(after[kind].requests - before[kind].requests, 4u) << to_string(kind);
    EXPECT_EQ(after[kind].hits - before[kind].hits, 4u) << to_string(kind);
    EXPECT_EQ(after[kind].total_bytes - before[kind].total_bytes, 4u * 2 * 300 * 4 * 32 * 4) << to_string(kind);
  }
  EXPECT_EQ(after[Category::output].requests - before[Category::output].requests, 8u);  // out and lse
  EXPECT_GT(after.hit_rate(), 0.0);
  EXPECT_EQ(after.requests() - before.requests(), 20u);
  EXPECT_EQ(after.hits() - before.hits(), 20u);
}

TEST(BufferStats, ShowsNoScoresForFusedAttention) {
  ImprovedDilatedAttention fused({64, 128}, {1, 2});
  testing_support::GatheredDilatedAttention gathered({64, 128}, {1, 2});
  const auto scores = [](AttentionCore& core) {
    const BufferStatistics before = buffer_stats();
    call_once(core, 200, true);
    const BufferStatistics after = buffer_stats();
    return std::pair{after[Category::scores].total_bytes - before[Category::scores].total_bytes,
                     after[Category::weights].total_bytes - before[Category::weights].total_bytes};
  };
  EXPECT_EQ(scores(fused), std::pair(std::uint64_t{0}, std::uint64_t{0}));
  EXPECT_GT(scores(gathered).first, 0u);  // the statistics count scores of an unfused core
  EXPECT_GT(scores(gathered).second, 0u);
}

TEST(BufferStats, IsReadable) {
  const std::string text = to_string(buffer_stats());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  for (const Category kind : buffer_kinds) EXPECT_THAT(text, HasSubstr(std::string(to_string(kind))));
  EXPECT_EQ(error_of<ValueError>([] { buffer_stats()[Category::gradient]; }),
            "[buffer_stats] not an attention buffer: gradient");
}

}  // namespace
}  // namespace poolgrad::attention
