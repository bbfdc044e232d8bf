// A ring whose ranks run on two devices (GPUs or emulated ones), or on one device and the host, under a race detector.
// Results have the bits of a ring on one device. Also tests the message of each forbidden use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <string>
#include <vector>

#include "allocator/caching_allocator.h"
#include "attention/ring/ring.h"
#include "autograd/operators.h"
#include "tests/attention/attend_support.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/mma_allowed.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {
namespace {

using Progress = LocalGroup::Progress;
using poolgrad::testing_support::error_of;

constexpr Device first{DeviceType::cuda, 0}, second{DeviceType::cuda, 1};

[[maybe_unused]] const bool two_devices = [] {
  setenv("POOLGRAD_EMULATED_DEVICES", "2", 1);
  setenv("POOLGRAD_ALLOCATOR", "races:on", 1);
  return true;
}();

/// Operands and results are on the CPU; `home` is the device of the whole ring.
RingOutcome ring_on(Device home, const std::vector<Device>& devices, RingOptions options, const RingInputs& in,
                    const Tensor& sinks, const Pattern& pattern, Progress progress) {
  options.devices = devices;
  return outcome_of(in, sinks, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s) {
    RingOptions own = options;
    for (Tensor* x : {&own.attend.alibi, &own.attend.key_padding})
      if (x->defined()) *x = to(*x, home);
    if (s.defined()) own.attend.sinks = to(s, home);
    const auto [out, lse] = ring_attend_all(to(q, home), to(k, home), to(v, home), pattern, 3, own, progress);
    EXPECT_EQ(out.device(), home);
    return Attended{to(out, cpu), to(lse, cpu)};
  });
}

TEST(RingOnDevices, HasTheBitsOfARingOnOneOfThem) {
  const RingInputs in = ring_inputs({2, 45, 45, 4, 2, 4, 6});
  const Pattern pattern = Pattern::causal() & Pattern::window(30, 0);
  for (const Layout layout : layouts)
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
      const RingOptions options{.layout = layout, .exchange = exchange};
      const RingOutcome one = ring_on(first, {}, options, in, {}, pattern, Progress::turns);
      const RingOutcome whole = outcome_of(
          in, {}, [&](const auto& q, const auto& k, const auto& v, const auto&) { return attend(q, k, v, pattern); });
      EXPECT_EQ(differences(one, whole, 1e-12), "");
      for (const Progress progress : {Progress::turns, Progress::threads})
        EXPECT_TRUE(same_bits(ring_on(first, {first, second}, options, in, {}, pattern, progress), one))
            << to_string(layout) << (progress == Progress::turns ? ", in turns" : ", in threads");
    }
}

TEST(RingOnDevices, TakesEveryOptionAndComesBackToTheHost) {
  const RingInputs in = ring_inputs({2, 31, 31, 4, 2, 4, 6});
  Generator numbers(3);
  const Tensor sinks = randn({4}, {.dtype = DType::f64}, numbers);
  const auto run = [&](Device home, const std::vector<Device>& devices) {
    Generator generator(6);
    RingOptions options{.layout = Layout::zigzag};
    options.attend.alibi = alibi_slopes(4, {.dtype = DType::f64});
    options.attend.key_padding = greater_equal(arange(0, 31, 1), full({2, 31}, 27.0));
    options.attend.dropout = 0.3;
    options.attend.softcap = 3.0;
    options.attend.generator = &generator;
    return ring_on(home, devices, options, in, sinks, Pattern::causal(), Progress::threads);
  };
  const RingOutcome host = run(cpu, {});
  EXPECT_EQ(differences(run(cpu, {first, second}), host, 1e-12), "");
  EXPECT_EQ(differences(run(second, {cpu, first}), host, 1e-12), "");
}

TEST(RingOnDevices, EachDeviceHoldsOnlyItsRanks) {
  const RingInputs in = ring_inputs({1, 64, 64, 2, 2, 4, 4});
  const auto peak = [&](Device device, const std::vector<Device>& devices) {
    allocator_for(device).trim();
    allocator_for(device).reset_peaks();
    RingOptions options;
    options.devices = devices;
    ring_attend_all(to(in.q, first), to(in.k, first), to(in.v, first), Pattern::dense(), 2, options);
    return allocator_for(device).statistics().category_bytes[static_cast<std::size_t>(Category::comm)].peak;
  };
  const auto one = peak(first, {});
  EXPECT_EQ(peak(first, {first, second}), one / 2);
  EXPECT_EQ(peak(second, {first, second}), one / 2);
  EXPECT_EQ(peak(second, {}), 0u);
}

TEST(RingOnDevices, RanksOfAGroupExchangeFromDeviceToDevice) {
  const RingInputs in = ring_inputs({1, 40, 40, 2, 2, 4, 4}, DType::f32);
  const Tensor want = attend(in.q, in.k, in.v, Pattern::causal()).out;
  LocalGroup group(2);
  std::vector<Tensor> parts(2);
  group.run(1, [&](Communicator& c, int) {
    const Device own{DeviceType::cuda, static_cast<std::uint8_t>(c.rank())};
    const auto mine = [&](const Tensor& x) { return to(take_shard(x, Layout::striped, c.rank(), 2), own); };
    const Attended got = ring_attend(mine(in.q), mine(in.k), mine(in.v), Pattern::causal(),
                                     group.communicator(c.rank()), {.layout = Layout::striped});
    parts[static_cast<std::size_t>(c.rank())] = to(got.out, cpu);
  });
  EXPECT_TRUE(allclose(join_shards(parts, Layout::striped), want, 1e-5, 1e-5));
}

TEST(RingOnDevices, ReportsALostMessageForAnyThrownType) {
  // A message from a rank on the host to a device needs pinned memory, which is exhausted.
  CachingAllocator& pinned = pinned_allocator_for(first);
  pinned.trim();
  pinned.set_budget(1);
  pinned.set_out_of_memory_callback([](std::size_t, int) -> bool { throw 42; });
  Tensor there = zeros({8}, {DType::f32, first});
  std::vector<float> out(8, 1.0F), in(8);
  const auto message = [](std::vector<float>& values) { return Message{values.data(), 32}; };
  LocalGroup group(2);
  std::latch offered(1);
  std::string heard;
  const auto body = [&](Communicator& c, int) {
    if (c.rank() == 0) {
      const auto transfer = c.start({}, 1, message(out), 1, message(in));
      offered.count_down();
      heard = error_of<Error>([&] { transfer->wait(); });
    } else {  // receives the message and copies it
      offered.wait();
      c.start({first, 0}, 0, {there.view().data, 32}, 0, {there.view().data, 32})->wait();
    }
  };
  EXPECT_THROW(group.run(1, body), int);
  EXPECT_THAT(heard,
              ::testing::AnyOf("[exchange] a message from rank 0 to rank 1 was lost", "[exchange] rank 1 failed"));
  pinned.set_out_of_memory_callback({});
  pinned.set_budget(0);
}

TEST(RingOnDevices, RefusesUnsupportedTransfers) {
  LocalGroup group(2, Progress::turns);
  Tensor out = zeros({8}, {DType::f32, first}), in = zeros({8}, {DType::f32, first});
  std::vector<std::unique_ptr<Transfer>> transfers;
  EXPECT_EQ(error_of<Error>([&] {
              group.run(1, [&](Communicator& c, int) {
                transfers.push_back(c.start({first, c.rank() == 0 ? 0u : 7u}, 1 - c.rank(), {out.view().data, 32},
                                            1 - c.rank(), {in.view().data, 32}));
              });
            }),
            "[exchange] rank 1 and rank 0 use different streams of cuda:0");
  const Tensor q = zeros({1, 4, 1, 4});
  EXPECT_EQ(error_of<ValueError>([&] {
              RingOptions options;
              options.devices = {first};
              ring_attend(q, q, q, Pattern::dense(), LocalGroup(1).communicator(0), options);
            }),
            "[ring_attend] devices is only for ring_attend_all; a rank computes on the device of its tensors");
}

TEST(RingOnDevices, ByTensorCoresEqualsOneDeviceUpToRounding) {
  const Call call = rounded(make_call({1, 150, 150, 4, 2, 16, 32}), DType::bf16);
  const Pattern pattern = Pattern::causal() & Pattern::window(120, 0);
  const auto run = [&](Layout layout, Device home, const std::vector<Device>& devices) {
    return outcome_of(call, [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttendOptions&) {
      const RingOptions options{.layout = layout, .devices = devices};
      const auto [out, lse] = ring_attend_all(to(q, home), to(k, home), to(v, home), pattern, 3, options);
      return Attended{to(out, cpu), to(lse, cpu)};
    });
  };
  const auto same = [](const Outcome& a, const Outcome& b) {
    for (std::size_t i = 0; i < 5; ++i)
      if (!bit_equal(parts(a)[i].second, parts(b)[i].second)) return false;
    return true;
  };
  const oracle::Multiplicity m = oracle::both(oracle::causal(), oracle::window(120, 0));
  const Outcome want = defined(call, m), rounding = rounding_of(call, m, DType::bf16);
  for (const Layout layout : layouts) {
    const auto by = [&](bool mma) {
      const MmaAllowed allowed(mma);
      return run(layout, first, {});
    };
    const Outcome portable = by(false), one = by(true);
    const MmaAllowed allowed;
    EXPECT_FALSE(same(one, portable)) << to_string(layout) << ": weights are rounded";
    EXPECT_EQ(difference(one, want, 2e-5, rounding, 0x1p-8), "") << to_string(layout);
    EXPECT_TRUE(same(run(layout, first, {first, second}), one)) << to_string(layout);
  }
}

TEST(RingOnDevices, ByTensorCoresMakesTheRequestsOfASimulatedDevice) {
  const MmaAllowed allowed;
  const auto asked_on = [&](Device device, DType dtype) {
    const RingInputs in = ring_inputs({1, 150, 150, 4, 2, 16, 32}, dtype);
    const Tensor q = to(in.q, device).detach().set_requires_grad(), k = to(in.k, device), v = to(in.v, device);
    CachingAllocator& pool = allocator_for(device);
    pool.trim();
    pool.reset_sequence_hash();
    pool.reset_peaks();
    const Tensor out = ring_attend_all(q, k, v, Pattern::causal(), 3, {.layout = Layout::zigzag}).out;
    sum(out).backward();
    return std::pair{pool.sequence_hash(), pool.statistics().requested_bytes.peak};
  };
  for (const DType dtype : {DType::bf16, DType::f32}) EXPECT_EQ(asked_on(first, dtype), asked_on(sim, dtype));
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
