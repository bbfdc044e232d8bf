// A ring between processes has the bits of a ring within one process. Both differ from attend() by rounding only.
#include "allocator/caching_allocator.h"
#include "attention/modules/named.h"
#include "kernels/parallel.h"
#include "tests/attention/attend_support.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/parallel/mpi_support.h"

namespace poolgrad::parallel::testing_support {
namespace {

using namespace attention;

/// Returns this rank's part of the results and gradients of ring_attend() on `device`.
RingOutcome part_of_ring(MpiWorld& world, const RingInputs& in, const Tensor& sinks, const Pattern& pattern,
                         RingOptions options, Device device = cpu) {
  const auto mine = [&](const Tensor& x, int dim = 1) {
    return to(take_shard(x, options.layout, rank(), ranks(), dim), device);
  };
  options.queries = in.q.size(1), options.keys = in.k.size(1);
  std::vector<Tensor> leaves{mine(in.q), mine(in.k), mine(in.v), sinks.defined() ? to(sinks.copy(), device) : Tensor()};
  for (Tensor& leaf : leaves)
    if (leaf.defined()) leaf.set_requires_grad();
  options.attend.sinks = leaves[3];
  for (Tensor* const x : {&options.attend.alibi, &options.attend.key_padding})
    if (x->defined()) *x = to(*x, device);
  Generator generator(77), numbers(3);
  options.attend.generator = &numbers;
  const Tensor along = randn({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options(), generator);
  const Tensor along_lse = randn({in.q.size(0), in.q.size(2), in.q.size(1)}, {.dtype = DType::f64}, generator);
  RingOutcome part;
  world.run([&] {
    const Attended got = ring_attend(leaves[0], leaves[1], leaves[2], pattern, world.communicator(), options);
    (sum(got.out * mine(along)) + sum(got.lse * mine(along_lse, 2))).backward();
    const auto here = [](const Tensor& x) { return to(x.detach(), cpu); };
    const auto gradient = [&](const Tensor& x) { return x.defined() ? here(x.grad()) : Tensor(); };
    part = {here(got.out),       here(got.lse),       gradient(leaves[0]),
            gradient(leaves[1]), gradient(leaves[2]), gradient(leaves[3])};
  });
  return part;
}

/// Returns the same part of ring_attend_all() with as many ranks in this process.
RingOutcome part_of_one_process(const RingInputs& in, const Tensor& sinks, const Pattern& pattern,
                                const RingOptions& options) {
  Generator numbers(3);
  const RingOutcome whole = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
    RingOptions its = options;
    its.attend.sinks = s;
    its.attend.generator = &numbers;
    return ring_attend_all(q, k, v, pattern, ranks(), its);
  });
  const auto part = [&](const Tensor& x, int dim = 1) { return take_shard(x, options.layout, rank(), ranks(), dim); };
  return {part(whole.out), part(whole.lse, 2), part(whole.dq), part(whole.dk), part(whole.dv), {}};
}

class MpiRing : public ::testing::Test {
 protected:
  void SetUp() override { kernels::set_num_threads(1); }
  MpiWorld world_;
};

TEST_F(MpiRing, EqualsTheRingOfOneProcessBitForBit) {
  const RingInputs in = ring_inputs({1, 61, 61, 3, 3, 3, 2});
  int number = 0;
  for (const Case& one : pattern_cases())
    for (const Layout layout : layouts)
      for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
        if (++number % 5 != 0 && ranks() > 4) continue;  // many ranks on few cores are slow
        const Case its = number % 4 < 2 ? one : causal(one);
        const RingOptions options{.layout = layout, .exchange = exchange};
        EXPECT_TRUE(same_bits(part_of_ring(world_, in, {}, its.pattern, options),
                              part_of_one_process(in, {}, its.pattern, options)))
            << its.name << ", " << attention::to_string(layout);
      }
}

TEST_F(MpiRing, EqualsOneDeviceUpToRounding) {
  const RingInputs in = ring_inputs({2, 45, 45, 4, 2, 4, 6});
  Generator numbers(8);
  const Tensor sinks = randn({4}, {.dtype = DType::f64}, numbers);
  RingOptions options;
  options.attend.alibi = alibi_slopes(4, {.dtype = DType::f64});
  options.attend.key_padding = less(arange(0, 45, 1), full({2, 45}, 39.0));
  options.attend.softcap = 3.0;
  options.attend.dropout = 0.25;
  Generator generator(3);
  const Pattern pattern = Pattern::causal() & Pattern::window(30, 0);
  const RingOutcome whole = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
    AttendOptions its = options.attend;
    its.sinks = s, its.generator = &generator;
    return attend(q, k, v, pattern, its);
  });
  for (const Layout layout : layouts) {
    options.layout = layout;
    const auto part = [&](const Tensor& x, int dim = 1) { return take_shard(x, layout, rank(), ranks(), dim); };
    RingOutcome got = part_of_ring(world_, in, sinks, pattern, options);
    Tensor sum_of_sinks = got.dsinks.copy();
    world_.run([&] {  // each rank has the share of its queries
      Communicator& c = *world_.communicator();
      for (int distance = 1; distance < c.size(); ++distance) {
        Tensor other = Tensor::empty_like(got.dsinks);
        const auto bytes = other.numel() * 8;
        c.start({}, beyond(c, distance), {got.dsinks.view().data, bytes}, beyond(c, -distance),
                {other.view().data, bytes})
            ->wait();
        sum_of_sinks = sum_of_sinks + other;
      }
    });
    got.dsinks = sum_of_sinks;
    EXPECT_EQ(
        differences(got,
                    {part(whole.out), part(whole.lse, 2), part(whole.dq), part(whole.dk), part(whole.dv), whole.dsinks},
                    1e-12),
        "")
        << attention::to_string(layout);
  }
}

TEST_F(MpiRing, TakesSequencesShorterThanTheRing) {
  for (const RingSizes& sizes : {RingSizes{1, 3, 3, 2, 1, 4, 4}, RingSizes{1, 13, 5, 2, 2, 4, 3}}) {
    const RingInputs in = ring_inputs(sizes);
    for (const Layout layout : layouts)
      EXPECT_TRUE(same_bits(part_of_ring(world_, in, {}, Pattern::causal(), {.layout = layout}),
                            part_of_one_process(in, {}, Pattern::causal(), {.layout = layout})));
  }
}

TEST_F(MpiRing, AccumulatesHalfPrecisionGradientsInF32) {
  const RingInputs in = ring_inputs({1, 40, 40, 2, 2, 8, 8}, DType::bf16);
  const auto run = [&](Exchange exchange) {
    std::vector<Tensor> own;
    for (const Tensor& x : {in.q, in.k, in.v}) own.push_back(take_shard(x, Layout::zigzag, rank(), ranks()));
    for (Tensor& x : own) x.set_requires_grad();
    world_.run([&] {
      const RingOptions options{.layout = Layout::zigzag, .exchange = exchange, .queries = 40, .keys = 40};
      sum(square(ring_attend(own[0], own[1], own[2], Pattern::causal(), world_.communicator(), options).out))
          .backward();
    });
    return own[1].grad();
  };
  Tensor q = in.q.copy(), k = in.k.copy(), v = in.v.copy();
  for (Tensor* const x : {&q, &k, &v}) x->set_requires_grad();
  sum(square(ring_attend_all(q, k, v, Pattern::causal(), ranks(), {.layout = Layout::zigzag}).out)).backward();
  const Tensor want = take_shard(k.grad(), Layout::zigzag, rank(), ranks());
  EXPECT_TRUE(bit_equal(run(Exchange::ring), want));
}

TEST_F(MpiRing, SendsTheMessagesOfItsPlan) {
  const std::int64_t length = 32 * ranks(), message = ring_message_bytes(1, 32, 2, 4, 6, DType::f32);
  const RingInputs in = ring_inputs({1, length, length, 4, 2, 4, 6}, DType::f32);
  const Pattern causal = Pattern::causal();
  for (const Pattern& pattern : {causal, Pattern::window(40, 0), Pattern::dilated({16, 64, 256}, {1, 2, 4}) & causal})
    for (const Layout layout : layouts)
      for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
        const RingMessages sent =
            ring_messages(RingPlan(pattern, layout, ranks(), 4, length, length, 0), rank(), exchange);
        const auto statistics = std::make_shared<RingStatistics>();
        std::vector<Tensor> own;
        for (const Tensor& x : {in.q, in.k, in.v}) own.push_back(take_shard(x, layout, rank(), ranks()));
        for (Tensor& x : own) x.set_requires_grad();
        world_.run([&] {
          const RingOptions options{.layout = layout, .exchange = exchange, .statistics = statistics};
          sum(ring_attend(own[0], own[1], own[2], pattern, world_.communicator(), options).out).backward();
        });
        const std::int64_t messages = sent.keys + sent.gradients;
        EXPECT_EQ(statistics->messages, messages) << pattern.to_string() << ", " << attention::to_string(layout);
        EXPECT_EQ(statistics->bytes_sent, messages * message)
            << pattern.to_string() << ", " << attention::to_string(layout);
      }
}

TEST_F(MpiRing, ModulesTakeTheCommunicator) {
  const std::int64_t length = 8 * ranks();
  const RingInputs in = ring_inputs({1, length, length, 2, 2, 4, 4});
  RingAttention whole(Pattern::window(9, 0));
  RingAttention part(Pattern::window(9, 0), {.layout = Layout::striped, .communicator = world_.communicator()});
  const auto mine = [&](const Tensor& x) { return take_shard(x, Layout::striped, rank(), ranks()); };
  Tensor out;
  world_.run([&] { out = part.forward(mine(in.q), mine(in.k), mine(in.v)); });
  EXPECT_TRUE(allclose(out, mine(whole.forward(in.q, in.k, in.v)), 1e-12, 1e-12));
}

TEST_F(MpiRing, AFailedRankEndsTheOthersWithItsReason) {
  NEEDS_RANKS(2);
  const RingInputs in = ring_inputs({1, 64, 64, 2, 2, 4, 4});
  const auto forward = [&](std::int64_t missing) {
    world_.run([&] {
      const auto mine = [&](const Tensor& x) { return take_shard(x, Layout::contiguous, rank(), ranks()); };
      const std::int64_t keys = 64 - (rank() == 1 ? missing : 0);
      ring_attend(mine(in.q), mine(in.k), mine(in.v), Pattern::dense(), world_.communicator(),
                  {.queries = 64, .keys = keys});
    });
  };
  EXPECT_THAT(error_of<Error>([&] { forward(10); }),
              ::testing::MatchesRegex("(.exchange. rank 1 failed: )?.ring_attend. rank 1 of .*"));
  forward(0);
}

TEST_F(MpiRing, SendsGpuTensorsThroughPinnedMemory) {
  const Device gpu{DeviceType::cuda, 0};
  const RingInputs in = ring_inputs({1, 45, 45, 2, 2, 4, 4});
  for (const Layout layout : layouts) {
    const RingOptions options{.layout = layout};
    EXPECT_EQ(differences(part_of_ring(world_, in, {}, Pattern::causal(), options, gpu),
                          part_of_one_process(in, {}, Pattern::causal(), options), 1e-12),
              "");
  }
  const Statistics pinned = pinned_allocator_for(gpu).statistics();
  if (ranks() > 1) {
    EXPECT_GT(pinned.requests, 0u);
  }
  EXPECT_EQ(pinned.allocation.current, 0u);
}

TEST_F(MpiRing, SendsOnlySizesOnASimulatedDevice) {
  const RingInputs in = ring_inputs({1, 45, 45, 2, 2, 4, 4});
  auto statistics = std::make_shared<RingStatistics>();
  part_of_ring(world_, in, {}, Pattern::dense(), {.layout = Layout::striped, .statistics = statistics},
               {DeviceType::sim, 0});
  EXPECT_EQ(statistics->messages, ranks() == 1 ? 0 : 2 * (ranks() - 1) + ranks());
}

}  // namespace
}  // namespace poolgrad::parallel::testing_support
