// What attend() asks of the pool: the bytes of docs/attention.md and nothing of the size of Nq Nk, on every device the
// same.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/operators.h"
#include "tensor/grad_mode.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::difference;
using testing_support::make_call;
using testing_support::Sizes;

constexpr Device sim{DeviceType::sim, 0};

std::uint64_t live_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }
std::uint64_t peak_bytes() { return allocator_for(cpu).statistics().requested_bytes.peak; }

/// The call with every option, on a device.
Call full_call(const Sizes& s, Device device) {
  Call call = make_call(s, DType::f32);
  call.options.bias = testing_support::normal({1, s.heads, 1, s.keys}, 3, DType::f32);
  call.options.sinks = testing_support::normal({s.heads}, 4, DType::f32);
  call.options.alibi = alibi_slopes(s.heads);
  for (Tensor* x : {&call.q, &call.k, &call.v, &call.grad_out, &call.grad_lse, &call.options.bias, &call.options.sinks,
                    &call.options.alibi})
    *x = to(*x, device);
  call.options.softcap = 3.0;
  call.options.dropout = 0.1;
  return call;
}

struct Config {
  DType dtype;
  std::int64_t heads, kv_heads, width;
};
constexpr std::int64_t length = 16384;

TEST(AttendMemory, PeaksAtTheBytesOfItsOperandsAndResults) {
  for (const Config& c : {Config{DType::f16, 8, 8, 64}, Config{DType::f32, 4, 1, 64}}) {
    const auto es = static_cast<std::uint64_t>(size_of(c.dtype)), n = static_cast<std::uint64_t>(length);
    const std::uint64_t q = n * static_cast<std::uint64_t>(c.heads * c.width) * es,
                        k = n * static_cast<std::uint64_t>(c.kv_heads * c.width) * es,
                        row = n * static_cast<std::uint64_t>(c.heads) * 4;  // lse, delta
    for (const Pattern& pattern : {Pattern::window(31, 0), Pattern::dilated({64, 256}, {1, 4}) & Pattern::causal(),
                                   Pattern::block_offsets(32, {0, -1})}) {
      const std::uint64_t before = live_bytes();
      Call call = make_call({1, length, length, c.heads, c.kv_heads, c.width, c.width}, c.dtype);
      call.grad_lse = {};
      allocator_for(cpu).reset_peaks();
      {
        const NoGradGuard no_grad;
        const Attended result = attend(call.q, call.k, call.v, pattern);
        const std::uint64_t formula = 3 * q + 2 * k + row;  // q, k, v, out, the gradient that waits, lse
        EXPECT_LE(peak_bytes() - before, formula + formula / 100) << pattern.to_string();
        EXPECT_GE(peak_bytes() - before, formula) << pattern.to_string();
      }
      allocator_for(cpu).reset_peaks();
      attended(call, pattern);
      const std::uint64_t formula = 4 * q + 4 * k + 2 * row;  // q, out, dO, dq; k, v, dk, dv; lse, delta
      EXPECT_LE(peak_bytes() - before, formula + formula / 100) << pattern.to_string();

      allocator_for(cpu).reset_peaks();
      call.options.dq_over_out = true;
      attended(call, pattern);
      EXPECT_LE(peak_bytes() - before, formula - q + formula / 100) << pattern.to_string();

      allocator_for(cpu).reset_peaks();
      {
        const NoGradGuard no_grad;
        call.options.out_over_q = true;
        EXPECT_TRUE(attend(call.q, call.k, call.v, pattern, call.options).out.shares_storage_with(call.q));
        EXPECT_LE(peak_bytes() - before, (2 * q + 2 * k + row) / 100 * 101) << pattern.to_string();
      }
    }
  }
}

TEST(AttendMemory, NeverHoldsScoresOrWeights) {
  allocator_for(cpu).reset_peaks();
  for (const Case& one : cases_with("")) attended(full_call({1, 131, 131, 4, 2, 8, 8}, cpu), one.pattern);
  const Statistics after = allocator_for(cpu).statistics();
  for (const Category category : {Category::scores, Category::weights})
    EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(category)].peak, 0u);
}

TEST(AttendMemory, AsksTheDeviceForNothingOnceItIsWarm) {
  for (const Device device : {cpu, sim}) {
    CachingAllocator& pool = allocator_for(device);
    const Call call = full_call({2, 150, 150, 4, 2, 16, 16}, device);
    for (const char* name : {"dense", "dilated not nested", "window + offsets + sinks"}) {
      const Case one = cases_with(name)[1];
      attended(call, one.pattern);
      const Statistics warm = pool.statistics();
      attended(call, one.pattern);
      const Statistics again = pool.statistics();
      attended(call, one.pattern);
      const Statistics last = pool.statistics();
      EXPECT_EQ(last.num_device_alloc, warm.num_device_alloc) << one.name;
      EXPECT_EQ(last.reserved_bytes.current, warm.reserved_bytes.current) << one.name;
      EXPECT_EQ(last.requested_bytes.current, warm.requested_bytes.current) << one.name;
      EXPECT_EQ(last.requests - again.requests, again.requests - warm.requests) << one.name;
    }
  }
}

TEST(AttendMemory, IsTheSameOnASimulatedDevice) {
  for (const char* name : {"dense", "dilated not nested", "blocks listed", "window + offsets + sinks"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Case one = cases_with(name)[0];
      std::uint64_t hashes[2];
      for (const Device device : {cpu, sim}) {
        Call call = rounded(full_call({2, 65, 70, 4, 2, 8, 8}, device), dtype);
        CachingAllocator& pool = allocator_for(device);
        pool.reset_sequence_hash();
        EXPECT_EQ(attended(call, one.pattern).dq.shape(), call.q.shape());
        hashes[device.is_sim()] = pool.sequence_hash();
      }
      EXPECT_EQ(hashes[0], hashes[1]) << one.name << " " << poolgrad::to_string(dtype);
    }
}

TEST(AttendMemory, ResultsOverOperandsAreTheSameResults) {
  const Pattern pattern = Pattern::dilated({16, 64}, {1, 2}) & Pattern::causal();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Call call = make_call({2, 131, 131, 4, 2, 8, 8}, dtype);
    const auto want = attended(call, pattern);
    call.options.dq_over_out = true;
    const auto over = attended(call, pattern);
    EXPECT_EQ(difference({{}, over.lse, over.dq, over.dk, over.dv, {}, {}},
                         {{}, want.lse, want.dq, want.dk, want.dv, {}, {}}, 0.0),
              "");
    const Tensor packed = cat({call.q, call.k, call.v}, 2);  // queries beside keys and values
    const Tensor q = slice(packed, 2, 0, 4);
    const Attended result = attend(q, slice(packed, 2, 4, 6), slice(packed, 2, 6, 8), pattern, {.out_over_q = true});
    EXPECT_TRUE(result.out.shares_storage_with(packed));
    EXPECT_EQ(difference({result.out, result.lse, {}, {}, {}, {}, {}}, {want.out, want.lse, {}, {}, {}, {}, {}}, 0.0),
              "");
  }
}

TEST(AttendMemory, RunningOutOfItLeavesNothingBehind) {
  constexpr Device small{DeviceType::sim, 5};
  configure_simulated_device(5, std::size_t{60} << 20);
  CachingAllocator& pool = allocator_for(small);
  const auto live = [&] { return pool.statistics().requested_bytes.current; };
  const auto tensor = [&](std::int64_t rows) {  // 8 MiB for 4096
    return Tensor::empty({1, rows, 8, 64}, {.device = small}).set_requires_grad();
  };
  const auto run = [&](std::int64_t rows) {
    const Tensor q = tensor(rows), k = tensor(rows), v = tensor(rows);
    attend(q, k, v, Pattern::causal()).out.backward(Tensor::empty(q.shape(), q.options()));
    EXPECT_EQ(q.grad().shape(), q.shape());
  };
  EXPECT_THROW(run(4096), OutOfMemoryError);  // in the backward
  EXPECT_EQ(live(), 0u);
  EXPECT_THROW(run(10000), OutOfMemoryError);  // in the forward
  EXPECT_EQ(live(), 0u);
  run(2048);
  EXPECT_EQ(live(), 0u);
}

}  // namespace
}  // namespace poolgrad::attention
