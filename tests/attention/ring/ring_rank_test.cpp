// Single ranks of a ring: the messages that they send and skip, their memory, and the failure of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "allocator/caching_allocator.h"
#include "attention/ring/ring.h"
#include "autograd/gradcheck.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {
namespace {

using Progress = LocalGroup::Progress;
using poolgrad::testing_support::error_of;

Gauge bytes_of(Category category, Device device = cpu) {
  return allocator_for(device).statistics().category_bytes[static_cast<std::size_t>(category)];
}

/// Statistics of each rank's forward and backward; every rank has its own thread.
std::vector<RingStatistics> run_ranks(const RingInputs& in, const Pattern& pattern, int ranks, Layout layout,
                                      bool backward, Exchange exchange = Exchange::ring) {
  LocalGroup group(ranks);
  std::vector<std::shared_ptr<RingStatistics>> statistics;
  for (int rank = 0; rank < ranks; ++rank) statistics.push_back(std::make_shared<RingStatistics>());
  group.run(1, [&](Communicator& c, int) {
    const RingOptions options{.layout = layout,
                              .exchange = exchange,
                              .queries = in.q.size(1),
                              .keys = in.k.size(1),
                              .statistics = statistics[static_cast<std::size_t>(c.rank())]};
    Tensor q = take_shard(in.q, layout, c.rank(), ranks), k = take_shard(in.k, layout, c.rank(), ranks),
           v = take_shard(in.v, layout, c.rank(), ranks);
    if (backward) q.set_requires_grad(), k.set_requires_grad(), v.set_requires_grad();
    const Attended got = ring_attend(q, k, v, pattern, group.communicator(c.rank()), options);
    if (backward) sum(got.out).backward();
  });
  std::vector<RingStatistics> result;
  for (const auto& one : statistics) result.push_back(*one);
  return result;
}

TEST(RingRank, GetsItsShareOfValuesAndGradients) {
  const RingInputs in = ring_inputs({2, 45, 45, 4, 2, 4, 6});
  const Pattern pattern = Pattern::causal() & Pattern::window(30, 0);
  const RingOutcome want = outcome_of(
      in, {}, [&](const auto& q, const auto& k, const auto& v, const auto&) { return attend(q, k, v, pattern); });
  Generator generator(77);
  const Tensor along = randn(want.out.shape(), want.out.options(), generator);
  const Tensor along_lse = randn(want.lse.shape(), want.lse.options(), generator);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (const int ranks : {1, 2, 5}) {
      LocalGroup group(ranks);
      std::vector<RingOutcome> parts(static_cast<std::size_t>(ranks));
      group.run(1, [&](Communicator& c, int) {
        const auto mine = [&](const Tensor& x, int dim = 1) { return take_shard(x, layout, c.rank(), ranks, dim); };
        Tensor q = mine(in.q), k = mine(in.k), v = mine(in.v);
        q.set_requires_grad(), k.set_requires_grad(), v.set_requires_grad();
        const auto [out, lse] =
            ring_attend(q, k, v, pattern, group.communicator(c.rank()), {.layout = layout, .queries = 45, .keys = 45});
        (sum(out * mine(along)) + sum(lse * mine(along_lse, 2))).backward();
        parts[static_cast<std::size_t>(c.rank())] = {out.detach(), lse.detach(), q.grad(), k.grad(), v.grad(), {}};
      });
      const auto joined = [&](Tensor RingOutcome::*part, int dim = 1) {
        std::vector<Tensor> all;
        for (const RingOutcome& one : parts) all.push_back(one.*part);
        return join_shards(all, layout, dim);
      };
      const RingOutcome got{joined(&RingOutcome::out), joined(&RingOutcome::lse, 2), joined(&RingOutcome::dq),
                            joined(&RingOutcome::dk),  joined(&RingOutcome::dv),     {}};
      EXPECT_EQ(differences(got, want, 1e-12), "") << ranks << " ranks, " << to_string(layout);
    }
}

TEST(RingRank, TakesGradientsOfOneResultAndOfAnyStrides) {
  const RingInputs in = ring_inputs({1, 24, 24, 2, 1, 4, 4});
  const auto losses = {std::function([](const Attended& x) { return sum(x.out); }),  // its gradient repeats one element
                       std::function([](const Attended& x) { return sum(square(transpose(x.out, 1, 3))); }),
                       std::function([](const Attended& x) { return sum(square(x.lse)); })};
  for (const auto& loss : losses) {
    Tensor q = in.q.copy(), k = in.k.copy();
    q.set_requires_grad(), k.set_requires_grad();
    loss(attend(q, k, in.v, Pattern::causal())).backward();
    LocalGroup group(3);
    std::vector<Tensor> dq(3), dk(3);
    group.run(1, [&](Communicator& c, int) {
      const auto mine = [&](const Tensor& x) { return take_shard(x, Layout::striped, c.rank(), 3); };
      Tensor own_q = mine(in.q), own_k = mine(in.k);
      own_q.set_requires_grad(), own_k.set_requires_grad();
      loss(ring_attend(own_q, own_k, mine(in.v), Pattern::causal(), group.communicator(c.rank()),
                       {.layout = Layout::striped}))
          .backward();
      dq[static_cast<std::size_t>(c.rank())] = own_q.grad(), dk[static_cast<std::size_t>(c.rank())] = own_k.grad();
    });
    EXPECT_TRUE(allclose(join_shards(dq, Layout::striped), q.grad(), 1e-12, 1e-12));
    EXPECT_TRUE(allclose(join_shards(dk, Layout::striped), k.grad(), 1e-12, 1e-12));
  }
}

TEST(RingRank, SendsItsKeysAndValuesToEveryOtherRankOfADenseRing) {
  constexpr int ranks = 4, tokens = 16;
  const RingInputs in = ring_inputs({2, 64, 64, 4, 2, 8, 8}, DType::bf16);
  const std::int64_t message = 2 * tokens * 2 * (8 + 8) * 2, gradients = 2 * message;  // bf16 operands, f32 gradients
  EXPECT_EQ(ring_message_bytes(2, tokens, 2, 8, 8, DType::bf16), message);
  for (const RingStatistics& rank : run_ranks(in, Pattern::dense(), ranks, Layout::striped, false))
    EXPECT_EQ(rank, (RingStatistics{ranks, ranks, 0, ranks - 1, (ranks - 1) * message}));
  // Backward: keys and values again, and their gradients with a last message to the owner.
  for (const RingStatistics& rank : run_ranks(in, Pattern::dense(), ranks, Layout::zigzag, true))
    EXPECT_EQ(rank, (RingStatistics{2 * ranks, 2 * ranks, 0, 2 * (ranks - 1) + ranks,
                                    2 * (ranks - 1) * message + ranks * gradients}));
}

TEST(RingRank, SkipsFutureKeys) {
  const RingInputs in = ring_inputs({1, 64, 64, 2, 2, 4, 4}, DType::f32);
  const auto contiguous = run_ranks(in, Pattern::causal(), 4, Layout::contiguous, false);
  for (int rank = 0; rank < 4; ++rank) {  // ranks forward all messages, but rank r needs only the keys of ranks 0 .. r
    EXPECT_EQ(contiguous[static_cast<std::size_t>(rank)].computed, rank + 1);
    EXPECT_EQ(contiguous[static_cast<std::size_t>(rank)].skipped, 3 - rank);
    EXPECT_EQ(contiguous[static_cast<std::size_t>(rank)].messages, 3);
  }
  for (const Layout balanced : {Layout::zigzag, Layout::striped})
    for (const RingStatistics& rank : run_ranks(in, Pattern::causal(), 4, balanced, false)) EXPECT_EQ(rank.computed, 4);
}

TEST(RingRank, SendsNothingForPatternsWithinShards) {
  const RingInputs in = ring_inputs({1, 128, 128, 4, 4, 4, 4}, DType::f32);
  const auto comm = bytes_of(Category::comm);
  for (const Pattern& pattern : {Pattern::dilated({8, 16, 32}, {1, 2, 4}), Pattern::documents({0, 32, 50, 64, 96, 128}),
                                 Pattern::block_offsets(16, std::vector<std::int64_t>{0})})
    for (const RingStatistics& rank : run_ranks(in, pattern, 4, Layout::contiguous, true))
      EXPECT_EQ(rank, (RingStatistics{8, 2, 6, 0, 0})) << pattern.to_string();
  EXPECT_EQ(bytes_of(Category::comm).allocated, comm.allocated);
}

TEST(RingRank, SkipsUnneededSteps) {
  const RingInputs in = ring_inputs({1, 128, 128, 2, 2, 4, 4}, DType::f32);
  const std::int64_t message = ring_message_bytes(1, 16, 2, 4, 4, DType::f32);
  // Neighbors on both sides: steps 0, 1 and 7 of 8.
  for (const RingStatistics& rank : run_ranks(in, Pattern::window(5, 5), 8, Layout::contiguous, false)) {
    EXPECT_EQ(rank.messages, 2);
    EXPECT_EQ(rank.bytes_sent, 2 * message);
  }
  // Earlier keys only: steps 0 and 1; the gradients return to their owner in one message.
  for (const RingStatistics& rank : run_ranks(in, Pattern::window(5, 0), 8, Layout::contiguous, true)) {
    EXPECT_EQ(rank.messages, 1 + 1 + 2);
    EXPECT_EQ(rank.bytes_sent, 4 * message);
  }
}

TEST(RingRank, GathersOnlyTheKeysItSees) {
  const RingInputs in = ring_inputs({1, 64, 64, 2, 2, 4, 4}, DType::f32);
  const std::int64_t message = ring_message_bytes(1, 16, 2, 4, 4, DType::f32);
  const auto ranks = run_ranks(in, Pattern::causal(), 4, Layout::contiguous, true, Exchange::all_gather);
  for (int rank = 0; rank < 4; ++rank) {  // each rank sends keys to later ranks twice, and receives gradients from them
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].messages, 2 * (3 - rank) + rank);
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].bytes_sent, (2 * (3 - rank) + rank) * message);
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].computed, 2 * (rank + 1));
  }
}

TEST(RingRank, SendsTheMessagesOfItsPlanForEveryPattern) {
  constexpr int share = 32;
  const Pattern causal = Pattern::causal();
  const std::int64_t keys = ring_message_bytes(2, share, 2, 3, 5, DType::bf16),
                     gradients = ring_message_bytes(2, share, 2, 3, 5, DType::f32);
  for (const Pattern& pattern :
       {causal, Pattern::dense(), Pattern::window(0, 0), Pattern::window(40, 0),
        Pattern::dilated({16, 64, 1024}, {1, 2, 4}) & causal, Pattern::dilated({48, 96}, {1, 3}) & causal,
        Pattern::block_offsets(16, {0, -1, -2, -4}) & causal, Pattern::block_offsets(32, {0, -9}) & causal,
        Pattern::global_local(16, 64, 20) & causal, Pattern::strided(24) & causal})
    for (const Layout layout : layouts)
      for (const Exchange exchange : {Exchange::ring, Exchange::all_gather})
        for (const int ranks : {1, 2, 3, 8}) {
          const std::int64_t length = ranks * share;
          const RingInputs in = ring_inputs({2, length, length, 4, 2, 3, 5}, DType::bf16);
          const RingPlan plan(pattern, layout, ranks, 4, length, length, 0);
          const auto statistics = run_ranks(in, pattern, ranks, layout, true, exchange);
          for (int rank = 0; rank < ranks; ++rank) {
            const RingMessages sent = ring_messages(plan, rank, exchange);
            std::int64_t computed = 0;
            for (const int step : plan.visited()) computed += plan.computes(rank, step);
            EXPECT_EQ(statistics[static_cast<std::size_t>(rank)],
                      (RingStatistics{2 * ranks, 2 * computed, 2 * (ranks - computed), sent.keys + sent.gradients,
                                      sent.keys * keys + sent.gradients * gradients}))
                << pattern.to_string() << ", " << to_string(layout) << ", rank " << rank << " of " << ranks;
          }
        }
}

TEST(RingRank, KeepsTwoExtraSlotsForAnyLength) {
  const Device sim{DeviceType::sim, 0};
  constexpr std::int64_t chunk = 64, heads = 4, width = 8;
  for (const int ranks : {2, 4, 8}) {
    const std::int64_t length = chunk * ranks;
    CachingAllocator& pool = allocator_for(sim);
    std::vector<RingInputs> shards;
    const auto before = pool.statistics().requested_bytes.current;
    for (int rank = 0; rank < ranks; ++rank)
      shards.push_back({zeros({1, chunk, heads, width}, {.device = sim}),
                        zeros({1, chunk, heads, width}, {.device = sim}),
                        zeros({1, chunk, heads, width}, {.device = sim})});
    pool.reset_peaks();
    LocalGroup group(ranks);
    group.run(1, [&](Communicator& c, int) {
      const RingInputs& mine = shards[static_cast<std::size_t>(c.rank())];
      ring_attend(mine.q, mine.k, mine.v, Pattern::dense(), group.communicator(c.rank()),
                  {.layout = Layout::zigzag, .queries = length, .keys = length});
    });
    const std::int64_t tensor = chunk * heads * width * 4, lse = chunk * heads * 4;
    const auto peak = static_cast<std::int64_t>(pool.statistics().requested_bytes.peak - before);
    const auto scratch = static_cast<std::int64_t>(bytes_of(Category::workspace, sim).peak);
    const std::int64_t share =
        ranks * ((4 + 4) * tensor + lse);  // all ranks hold theirs at once, in any order of computation
    EXPECT_GE(peak, share);
    EXPECT_LE(peak, share + scratch);
    EXPECT_EQ(static_cast<std::int64_t>(bytes_of(Category::comm, sim).peak), ranks * 4 * tensor);
    EXPECT_EQ(bytes_of(Category::comm, sim).current, 0u);
  }
}

TEST(RingRank, AllocatesNoScoresAndLeaksNothing) {
  const RingInputs in = ring_inputs({1, 96, 96, 4, 2, 8, 8}, DType::bf16);
  run_ranks(in, Pattern::causal(), 3, Layout::zigzag, true);  // allocates the lasting thread-local scratch
  CachingAllocator& pool = allocator_for(cpu);
  const auto before = pool.statistics().requested_bytes.current;
  pool.reset_peaks();
  run_ranks(in, Pattern::causal(), 3, Layout::zigzag, true);
  EXPECT_EQ(bytes_of(Category::scores).peak, 0u);
  EXPECT_EQ(bytes_of(Category::weights).peak, 0u);
  EXPECT_EQ(bytes_of(Category::comm).current, 0u);
  // Backward: two slots of keys and values, two of their gradients in the compute dtype.
  const auto slots =
      2 * (ring_message_bytes(1, 32, 2, 8, 8, DType::bf16) + ring_message_bytes(1, 32, 2, 8, 8, DType::f32));
  EXPECT_EQ(static_cast<std::int64_t>(bytes_of(Category::comm).peak), 3 * slots);
  EXPECT_EQ(pool.statistics().requested_bytes.current, before);
}

TEST(RingRank, GathersIntoASlotForEachStepAndThreeOfGradients) {
  constexpr std::int64_t ranks = 4;
  const RingInputs in = ring_inputs({1, 32 * ranks, 32 * ranks, 4, 2, 8, 16}, DType::bf16);
  const std::int64_t keys = ring_message_bytes(1, 32, 2, 8, 16, DType::bf16),
                     gradients = ring_message_bytes(1, 32, 2, 8, 16, DType::f32);
  for (const bool backward : {false, true}) {
    allocator_for(cpu).reset_peaks();
    run_ranks(in, Pattern::dense(), ranks, Layout::contiguous, backward, Exchange::all_gather);
    EXPECT_EQ(static_cast<std::int64_t>(bytes_of(Category::comm).peak),
              ranks * (ranks * keys + (backward ? 3 * gradients : 0)));
  }
}

TEST(RingRank, FailureReachesTheCallerAndTheGroupWorksAgain) {
  constexpr int ranks = 3;
  LocalGroup group(ranks);
  std::mutex mutex;
  std::vector<std::string> heard;
  const auto body = [&](std::int64_t length_on_rank_1) {
    return [&, length_on_rank_1](Communicator& c, int) {
      const std::int64_t length = c.rank() == 1 ? length_on_rank_1 : 8;
      const Tensor x = ones({1, length, 2, 4});
      try {
        ring_attend(x, x, x, Pattern::dense(), group.communicator(c.rank()), {.queries = 24, .keys = 24});
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        heard.emplace_back(error.what());
        throw;
      }
    };
  };
  const std::string reason =
      "[ring_attend] rank 1 of 3 has 8 positions of the contiguous layout, not those of q: q (1, 7, 2, 4) f32 on cpu";
  EXPECT_EQ(error_of<ShapeError>([&] { group.run(1, body(7)); }), reason);
  EXPECT_THAT(heard, ::testing::UnorderedElementsAre(reason, "[exchange] rank 1 failed: " + reason,
                                                     "[exchange] rank 1 failed: " + reason));
  EXPECT_EQ(bytes_of(Category::comm).current, 0u);
  heard.clear();
  group.run(1, body(8));
  EXPECT_THAT(heard, ::testing::IsEmpty());
}

TEST(RingRank, DifferentLengthsAreAnErrorNotAHang) {
  LocalGroup group(2);
  const auto body = [&](Communicator& c, int) {  // each rank assumes twice its own length
    const Tensor x = ones({1, c.rank() == 0 ? 8 : 6, 1, 4});
    ring_attend(x, x, x, Pattern::dense(), group.communicator(c.rank()));
  };
  EXPECT_THAT(error_of<Error>([&] { group.run(1, body); }), ::testing::HasSubstr("which expects"));
}

TEST(RingRank, RefusesASecondDerivative) {
  LocalGroup group(1);
  const Tensor x = ones({1, 4, 1, 2}).set_requires_grad();
  const Tensor out = ring_attend(x, x, x, Pattern::dense(), group.communicator(0)).out;
  EXPECT_EQ(error_of<Error>([&] { sum(out).backward({}, false, true); }),
            "[ring_attend] a rank has no second derivative: it would need the keys of all ranks");
}

TEST(RingAll, WorksAgainAfterRunningOutOfMemory) {
  const Device sim{DeviceType::sim, 1};
  CachingAllocator& pool = allocator_for(sim);
  const std::size_t budget = pool.budget();
  for (const Progress progress : {Progress::turns, Progress::threads}) {
    const Tensor x = zeros({1, 1 << 14, 8, 64}, {.device = sim});  // 32 MiB
    pool.trim();
    pool.set_budget(100 << 20);
    const auto before = pool.statistics().requested_bytes.current;
    EXPECT_THROW(ring_attend_all(x, x, x, Pattern::dense(), 4, {}, progress), OutOfMemoryError);
    pool.trim();  // releases memory of the pool's clients: the pool did not ask them, because it would not have helped
    EXPECT_EQ(pool.statistics().requested_bytes.current, before);
    pool.set_budget(budget);
    EXPECT_EQ(ring_attend_all(x, x, x, Pattern::dense(), 4, {}, progress).out.shape(), x.shape());
  }
}

TEST(RingAll, PassesGradcheckAndGradgradcheck) {
  const RingInputs in = ring_inputs({1, 5, 5, 2, 1, 2, 3});
  std::vector<Tensor> leaves{in.q, in.k, in.v};
  for (Tensor& x : leaves) x.set_requires_grad();
  const TensorFunction function = [](const std::vector<Tensor>& x) -> std::vector<Tensor> {
    const auto [out, lse] = ring_attend_all(x[0], x[1], x[2], Pattern::causal(), 3, {.layout = Layout::striped});
    return {out, lse};
  };
  const GradcheckReport first = gradcheck(function, leaves), second = gradgradcheck(function, leaves);
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
}

TEST(RingAll, RepeatsItsBackwardWithTheSameBits) {
  RingInputs in = ring_inputs({1, 33, 33, 2, 2, 4, 4}, DType::f32);
  for (Tensor* x : {&in.q, &in.k, &in.v}) x->set_requires_grad();
  const Tensor loss =
      sum(square(ring_attend_all(in.q, in.k, in.v, Pattern::causal(), 4, {.layout = Layout::zigzag}).out));
  loss.backward({}, true);
  const Tensor first = in.k.grad().copy();
  in.k.set_grad({});
  loss.backward();
  EXPECT_TRUE(bit_equal(in.k.grad(), first));
}

TEST(RingAll, SumsTheStatisticsOfItsRanks) {
  const RingInputs in = ring_inputs({1, 64, 64, 2, 2, 4, 4}, DType::f32);
  const auto statistics = std::make_shared<RingStatistics>();
  ring_attend_all(in.q, in.k, in.v, Pattern::causal(), 4, {.statistics = statistics});
  EXPECT_EQ(*statistics, (RingStatistics{16, 10, 6, 12, 12 * ring_message_bytes(1, 16, 2, 4, 4, DType::f32)}));
}

TEST(RingAll, RefusesOperandsThatRanksCannotShare) {
  const Tensor x = ones({1, 4, 2, 8});
  EXPECT_EQ(error_of<ValueError>([&] { ring_attend_all(x, x, x, Pattern::dense(), 0); }),
            "[ring_attend_all] needs at least one rank, got 0");
  const RingOptions biased{.attend = {.bias = ones({1, 1, 4, 4})}};
  EXPECT_THAT(error_of<ValueError>([&] { ring_attend_all(x, x, x, Pattern::dense(), 2, biased); }),
              ::testing::HasSubstr("a bias of all pairs is not divided among ranks"));
  const RingOptions aliased{.attend = {.out_over_q = true}};
  EXPECT_THAT(error_of<ValueError>([&] { ring_attend_all(x, x, x, Pattern::dense(), 2, aliased); }),
              ::testing::HasSubstr("are not for rings"));
  EXPECT_THROW(ring_attend_all(x, x, ones({1, 5, 2, 8}), Pattern::dense(), 2), ShapeError);
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
