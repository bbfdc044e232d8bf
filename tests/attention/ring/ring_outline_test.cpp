// Compares the predicted pairs, messages and memory of a ring with those of the ranks that run it.
#include "attention/ring/outline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "allocator/caching_allocator.h"
#include "attention/ring/pass.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {
namespace {

using poolgrad::testing_support::error_of;

/// The patterns of the training program, in sizes that shards of 16 positions and more cut in every way.
const std::vector<Pattern>& trained_patterns() {
  static const Pattern causal = Pattern::causal();
  static const std::vector<Pattern> patterns{
      causal,
      Pattern::dense(),
      Pattern::window(0, 0),
      Pattern::window(40, 0),
      Pattern::window(200, 0),
      Pattern::dilated({16, 64, 1024}, {1, 2, 4}) & causal,
      Pattern::dilated({64, 256}, {2, 4}) & causal,
      Pattern::dilated({48, 96}, {1, 3}) & causal,
      Pattern::block_offsets(16, {0, -1, -2, -4}) & causal,
      Pattern::block_offsets(32, {0, -9}) & causal,
      Pattern::global_local(16, 64, 20) & causal,
      Pattern::strided(16) & causal,
      Pattern::strided(24) & causal,
  };
  return patterns;
}

double sum_of(const std::vector<double>& pairs) { return std::accumulate(pairs.begin(), pairs.end(), 0.0); }

TEST(RingCostModel, CountsThePairsOfTheBusiestRankInEveryStep) {
  constexpr int ranks = 6, share = 17;
  for (const Pattern& pattern : trained_patterns())
    for (const Layout layout : layouts) {
      const RingCostModel outline(pattern, layout, ranks, 4, ranks * share);
      const std::vector<int>& visited = outline.plan().visited();
      std::vector<std::int64_t> pairs(ranks * ranks);  // [rank * ranks + step], pair by pair
      std::vector<int> owner(ranks * share);
      for (int rank = 0; rank < ranks; ++rank)
        for (std::int64_t row = 0; row < share; ++row)
          owner[static_cast<std::size_t>(shard_map(layout, ranks * share, rank, ranks).position(row))] = rank;
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = 0; i < ranks * share; ++i)
          for (std::int64_t j = 0; j < ranks * share; ++j) {
            const int rank = owner[static_cast<std::size_t>(i)], other = owner[static_cast<std::size_t>(j)];
            pairs[static_cast<std::size_t>(rank * ranks + (rank - other + ranks) % ranks)] +=
                pattern.multiplicity(h, 4, i, j) > 0;
          }
      for (int step = 0; step < ranks; ++step) {
        std::int64_t most = 0;
        for (int rank = 0; rank < ranks; ++rank)
          most = std::max(most, pairs[static_cast<std::size_t>(rank * ranks + step)]);
        const auto phase = std::ranges::find(visited, step) - visited.begin();
        const std::string name = pattern.to_string() + ", " + to_string(layout) + ", step " + std::to_string(step);
        if (phase == std::ssize(visited))
          EXPECT_EQ(most, 0) << name;
        else
          EXPECT_EQ(sum_of(outline.most_pairs(static_cast<std::size_t>(phase))), static_cast<double>(most)) << name;
      }
    }
}

/// Records the transfers that a rank starts.
class NotingCommunicator : public Communicator {
 public:
  NotingCommunicator(std::shared_ptr<Communicator> inner, std::vector<RingSend>& notes)
      : inner_(std::move(inner)), notes_(notes) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Transfer> start(Stream stream, int to, Message out, int from, Message in) override {
    const int distance = (to - rank() + size()) % size();
    notes_.push_back({distance == 0 ? size() : distance, out.bytes});
    return inner_->start(stream, to, out, from, in);
  }

 private:
  std::shared_ptr<Communicator> inner_;
  std::vector<RingSend>& notes_;
};

struct Sent {
  std::vector<RingSend> sends;
  RingStatistics statistics;
};

/// The messages that each rank sends in a forward or a backward, on a simulated device.
std::vector<Sent> sent_by_ranks(const Pattern& pattern, Layout layout, int ranks, const RingShare& share,
                                Exchange exchange, bool backward) {
  const Device sim{DeviceType::sim, 3};
  std::vector<Sent> sent(static_cast<std::size_t>(ranks));
  LocalGroup group(ranks);
  group.run(1, [&](Communicator& c, int) {
    Sent& own = sent[static_cast<std::size_t>(c.rank())];
    const auto some = [&](std::int64_t heads, std::int64_t width) {
      return Tensor::empty({share.batch, share.tokens, heads, width}, {share.dtype, sim}).set_requires_grad(backward);
    };
    const auto statistics = std::make_shared<RingStatistics>();
    const Attended got = ring_attend(some(share.heads, share.width), some(share.kv_heads, share.width),
                                     some(share.kv_heads, share.value_width), pattern,
                                     std::make_shared<NotingCommunicator>(group.communicator(c.rank()), own.sends),
                                     {.layout = layout, .exchange = exchange, .statistics = statistics});
    if (backward) sum(got.out).backward();
    own.statistics = *statistics;
  });
  return sent;
}

TEST(RingCostModel, PredictsEveryMessageOfEveryRankInOrder) {
  const RingShare share{
      .batch = 2, .tokens = 32, .heads = 4, .kv_heads = 2, .width = 3, .value_width = 5, .dtype = DType::bf16};
  for (const Pattern& pattern : trained_patterns())
    for (const Layout layout : layouts)
      for (const Exchange exchange : {Exchange::ring, Exchange::all_gather})
        for (const int ranks : {1, 2, 3, 8, 64}) {
          if (ranks == 64 && (exchange == Exchange::all_gather || !(pattern == trained_patterns()[5]))) continue;
          const RingCostModel outline(pattern, layout, ranks, share.heads, ranks * share.tokens);
          const auto sent = sent_by_ranks(pattern, layout, ranks, share, exchange, true);
          for (int rank = 0; rank < ranks; ++rank) {
            const std::string name = pattern.to_string() + ", " + to_string(layout) + ", rank " + std::to_string(rank) +
                                     " of " + std::to_string(ranks);
            std::vector<RingSend> expected = outline.sends(rank, share, exchange, false);
            const std::vector<RingSend> back = outline.sends(rank, share, exchange, true);
            expected.insert(expected.end(), back.begin(), back.end());
            const Sent& own = sent[static_cast<std::size_t>(rank)];
            ASSERT_EQ(own.sends, expected) << name;
            std::int64_t bytes = 0;
            for (const RingSend& send : expected) bytes += send.bytes;
            ASSERT_EQ(own.statistics.bytes_sent, bytes) << name;
            std::int64_t computed = 0;
            for (const int step : outline.plan().visited()) computed += outline.plan().computes(rank, step);
            ASSERT_EQ(own.statistics.computed, 2 * computed) << name;
          }
        }
}

TEST(RingCostModel, PredictsTheMemoryOfARankToTheByte) {
  const Device sim{DeviceType::sim, 4};
  CachingAllocator& pool = allocator_for(sim);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather})
      for (const Pattern& pattern : {Pattern::dense(), Pattern::window(40, 0), Pattern::window(0, 0)})
        for (const int ranks : {1, 2, 4}) {
          const RingShare share{
              .batch = 1, .tokens = 64, .heads = 4, .kv_heads = 2, .width = 8, .value_width = 16, .dtype = dtype};
          const RingCostModel outline(pattern, Layout::contiguous, ranks, share.heads, ranks * share.tokens);
          const RingMemory memory = outline.memory(share, exchange);
          const RingCall call{std::make_shared<const RingPlan>(pattern, Layout::contiguous, ranks, share.heads,
                                                               ranks * share.tokens, ranks * share.tokens, 0),
                              exchange,
                              {},
                              {}};
          const auto some = [&](std::int64_t heads, std::int64_t width) {
            return Tensor::empty({share.batch, share.tokens, heads, width}, {share.dtype, sim});
          };
          const auto requested = [&] {
            const Statistics now = pool.statistics();
            const auto scratch = now.category_bytes[static_cast<std::size_t>(Category::workspace)].current;
            return static_cast<std::int64_t>(now.requested_bytes.current - scratch);
          };
          const std::int64_t before = requested();
          LocalGroup group(ranks, LocalGroup::Progress::turns);
          std::vector<AttendOperands> operands;
          std::vector<std::unique_ptr<RingForward>> forwards;
          std::vector<std::unique_ptr<RingBackward>> backwards;
          for (int rank = 0; rank < ranks; ++rank) {
            AttendOperands x;
            x.q = some(share.heads, share.width), x.k = some(share.kv_heads, share.width);
            x.v = some(share.kv_heads, share.value_width);
            operands.push_back(x);
            forwards.push_back(std::make_unique<RingForward>(call, x, group.communicator(rank)));
          }
          // A pass allocates all its memory at its start, except the carried results of ranks that compute once.
          std::int64_t carried = 0;
          for (int rank = 0; rank < ranks && dtype == DType::bf16; ++rank) {
            int computed = 0;
            for (const int step : outline.plan().visited()) computed += outline.plan().computes(rank, step);
            if (computed == 1 && outline.plan().visited().size() > 1)
              carried += 4 * share.tokens * share.heads * share.value_width;
          }
          const std::string name = pattern.to_string() + ", " + std::to_string(ranks) + " ranks, " +
                                   std::string(to_string(dtype)) + (exchange == Exchange::ring ? "" : ", gathered");
          EXPECT_EQ(requested() - before, ranks * memory.forward - carried) << name;
          const int phases = forwards[0]->phases();
          for (int phase = 0; phase < phases; ++phase)
            for (auto& pass : forwards) pass->run(phase);
          std::vector<Tensor> gradients;
          for (int rank = 0; rank < ranks; ++rank) {
            const auto index = static_cast<std::size_t>(rank);
            gradients.push_back(some(share.heads, share.value_width));
            backwards.push_back(std::make_unique<RingBackward>(call, operands[index], forwards[index]->result(),
                                                               gradients[index], Tensor(), group.communicator(rank)));
          }
          EXPECT_EQ(requested() - before, ranks * memory.backward) << name;
        }
}

TEST(RingCostModel, RefusesIndivisibleLengths) {
  EXPECT_EQ(error_of<ValueError>([] { RingCostModel(Pattern::causal(), Layout::zigzag, 3, 1, 4096); }),
            "[RingCostModel] 4096 tokens do not divide among 3 ranks");
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
