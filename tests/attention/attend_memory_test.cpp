// Memory of attend(): its pool requests are the bytes of docs/reference/attention.md, the same on every device, and
// none of size Nq Nk.
#include <gtest/gtest.h>

#include "allocator/caching_allocator.h"
#include "allocator/error.h"
#include "autograd/engine/engine.h"
#include "autograd/operators.h"
#include "tests/attention/attend_support.h"

namespace poolgrad::attention {
namespace {

using testing_support::attended;
using testing_support::Call;
using testing_support::Case;
using testing_support::cases_with;
using testing_support::make_call;
using testing_support::sim;
using testing_support::Sizes;

std::uint64_t live_bytes() { return allocator_for(cpu).statistics().requested_bytes.current; }

/// A call with every option on a device.
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

/// While `action` runs, the peak above `before` is the formula's plus kernel scratch, which does not grow with the
/// length.
void expect_peak(std::uint64_t before, std::uint64_t formula, const std::string& what,
                 const std::function<void()>& action) {
  constexpr std::uint64_t scratch_of_a_thread = std::uint64_t{5} << 20;
  CachingAllocator& pool = allocator_for(cpu);
  pool.reset_peaks();
  action();
  const Statistics after = pool.statistics();
  const std::uint64_t scratch = after.category_bytes[static_cast<std::size_t>(Category::workspace)].peak;
  EXPECT_LE(scratch, scratch_of_a_thread * static_cast<std::uint64_t>(kernels::num_threads())) << what;
  EXPECT_GE(after.requested_bytes.peak - before, formula) << what;
  EXPECT_LE(after.requested_bytes.peak - before, formula + formula / 1000 + scratch) << what;
}

TEST(AttendMemory, PeakIsTheBytesOfOperandsAndResults) {
  constexpr std::int64_t length = 8192;
  for (const Config& c : {Config{DType::f16, 8, 8, 64}, Config{DType::f32, 4, 1, 64}})
    for (const Pattern& pattern : {Pattern::window(31, 0), Pattern::dilated({64, 256}, {1, 4}) & Pattern::causal(),
                                   Pattern::block_offsets(32, {0, -1})}) {
      const std::string what = pattern.to_string() + " " + std::string(poolgrad::to_string(c.dtype));
      const auto bytes = [&](std::int64_t heads, std::int64_t width, std::size_t element) {
        return static_cast<std::uint64_t>(length * heads * width) * element;
      };
      const std::uint64_t q = bytes(c.heads, c.width, size_of(c.dtype)),
                          k = bytes(c.kv_heads, c.width, size_of(c.dtype)),
                          row = bytes(c.heads, 1, sizeof(float));  // one of lse or delta
      const std::uint64_t before = live_bytes();
      Call call = make_call({1, length, length, c.heads, c.kv_heads, c.width, c.width}, c.dtype);
      call.grad_lse = {};
      const auto gradients = [&](bool dq_over_out) {
        const Tensor leaves[] = {call.q.detach().set_requires_grad(), call.k.detach().set_requires_grad(),
                                 call.v.detach().set_requires_grad()};
        const Attended result = attend(leaves[0], leaves[1], leaves[2], pattern, {.dq_over_out = dq_over_out});
        grad({result.out}, {leaves[0], leaves[1], leaves[2]}, {call.grad_out});
      };
      // q, k, v and the gradient of out exist; out, lse, delta, dq, dk and dv are allocated.
      expect_peak(before, 4 * q + 4 * k + 2 * row, what, [&] { gradients(false); });
      expect_peak(before, 3 * q + 4 * k + 2 * row, what + ", dq over out", [&] { gradients(true); });
      call.grad_out = {};
      expect_peak(before, 2 * q + 2 * k + row, what + ", forward", [&] { attend(call.q, call.k, call.v, pattern); });
      expect_peak(before, q + 2 * k + row, what + ", out over q", [&] {
        EXPECT_TRUE(attend(call.q, call.k, call.v, pattern, {.out_over_q = true}).out.shares_storage_with(call.q));
      });
    }
}

TEST(AttendMemory, AllocatesNeitherScoresNorWeights) {
  allocator_for(cpu).reset_peaks();
  for (const Case& one : cases_with("")) attended(full_call({1, 131, 131, 4, 2, 8, 8}, cpu), one.pattern);
  const Statistics after = allocator_for(cpu).statistics();
  for (const Category category : {Category::scores, Category::weights})
    EXPECT_EQ(after.category_bytes[static_cast<std::size_t>(category)].peak, 0u);
}

TEST(AttendMemory, MakesNoDeviceAllocationAfterWarmUp) {
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

TEST(AttendMemory, ASimulatedDeviceGetsTheSameScratchRequests) {
  struct Workspace {
    std::uint64_t requests, bytes, peak;
    bool operator==(const Workspace&) const = default;
  };
  const Pattern patterns[] = {Pattern::causal(), Pattern::dilated({64, 256}, {1, 4}) & Pattern::causal(),
                              Pattern::window(40, 0)};
  constexpr Device like_cpu{DeviceType::sim, 6};
  configure_simulated_device(like_cpu.index, std::size_t{8} << 30, "cpu");
  for (const Pattern& pattern : patterns)
    for (const DType dtype : {DType::f32, DType::bf16})  // dq is summed in place and in scratch
      for (const int threads : {1, 2, 5})                // by heads, as a wavefront, in two passes
        for (const std::int64_t queries : {1, 700}) {
          const testing_support::Threads several(threads);
          Workspace asked[2];
          for (const Device device : {cpu, like_cpu}) {
            Call call = make_call({1, queries, 5000, 2, 1, 16, 16}, dtype);
            for (Tensor* x : {&call.q, &call.k, &call.v, &call.grad_out, &call.grad_lse}) *x = to(*x, device);
            CachingAllocator& pool = allocator_for(device);
            constexpr auto scratch = static_cast<std::size_t>(Category::workspace);
            const auto requests = [](const Statistics& s) {
              return s.category_hits[scratch] + s.category_misses[scratch];
            };
            pool.reset_peaks();
            const Statistics before = pool.statistics();
            attended(call, pattern);
            const Statistics after = pool.statistics();
            asked[device.is_sim()] = {
                requests(after) - requests(before),
                after.category_bytes[scratch].allocated - before.category_bytes[scratch].allocated,
                after.category_bytes[scratch].peak};
          }
          EXPECT_GE(asked[0].requests, 3u);
          EXPECT_EQ(asked[0], asked[1]) << pattern.to_string() << " " << threads << " threads, " << queries
                                        << " queries, bytes " << asked[0].bytes << " and " << asked[1].bytes;
        }
}

TEST(AttendMemory, RunningOutOfMemoryLeaksNothing) {
  constexpr Device small{DeviceType::sim, 5};
  configure_simulated_device(5, std::size_t{60} << 20);
  CachingAllocator& pool = allocator_for(small);
  const auto live = [&] {
    pool.trim();  // releases the program of the pattern
    return pool.statistics().requested_bytes.current;
  };
  const auto tensor = [&](std::int64_t rows) {  // 8 MiB for 4096 rows
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
