// Modules over a ring give the results of their counterparts on one device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "attention/modules/named.h"
#include "tests/attention/pattern/sparse_types.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {
namespace {

using poolgrad::testing_support::error_of;

/// The module's result and gradients; every call starts from the same generator state.
RingOutcome outcome_of_module(AttentionCore& module, const RingInputs& in, bool causal) {
  return outcome_of(in, {}, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&) {
    const Tensor out = module(q, k, v, {.causal = causal});
    return Attended{out, zeros({1}, {.dtype = DType::f64})};
  });
}

TEST(RingDilatedAttention, EqualsDilatedAttentionOfOneDevice) {
  const std::vector<std::int64_t> segments{16, 32, 64}, rates{1, 2, 4};
  const RingInputs in = ring_inputs({1, 90, 90, 4, 2, 4, 4});
  for (const DilatedMode mode : {DilatedMode::longnet, DilatedMode::grouped})
    for (const bool causal : {false, true}) {
      ImprovedDilatedAttention single(segments, rates, {.mode = mode});
      const RingOutcome want = outcome_of_module(single, in, causal);
      for (const Layout layout : layouts) {
        RingDilatedAttention ring(segments, rates, {.ring_size = 4, .layout = layout}, {.mode = mode});
        EXPECT_EQ(differences(outcome_of_module(ring, in, causal), want, 1e-12), "") << to_string(layout);
      }
    }
}

TEST(RingDilatedAttention, DropsWeightsInTrainingOnlyAndTheSameAsOneDevice) {
  const RingInputs in = ring_inputs({1, 40, 40, 2, 2, 4, 4});
  Generator generator(4);
  const CoreOptions options{.dropout = 0.3, .generator = &generator};
  ImprovedDilatedAttention single({8, 32}, {1, 2}, {}, options);
  RingDilatedAttention ring({8, 32}, {1, 2}, {.ring_size = 3, .layout = Layout::zigzag}, {}, options);
  const RingOutcome want = outcome_of_module(single, in, true);
  generator = Generator(4);
  EXPECT_EQ(differences(outcome_of_module(ring, in, true), want, 1e-12), "");
  ring.eval(), single.eval();
  const RingOutcome quiet = outcome_of_module(ring, in, true);
  EXPECT_NE(differences(quiet, want, 1e-3), "");
  EXPECT_EQ(differences(quiet, outcome_of_module(single, in, true), 1e-12), "");
}

TEST(RingDilatedAttention, SendsNothingForSegmentsWithinShards) {
  const RingInputs in = ring_inputs({1, 128, 128, 4, 4, 4, 4}, DType::f32);
  RingDilatedAttention within({8, 16, 32}, {1, 2, 4}, {.ring_size = 4}),
      across({8, 16, 64}, {1, 2, 4}, {.ring_size = 4});
  within(in.q, in.k, in.v), across(in.q, in.k, in.v);
  EXPECT_EQ(within.statistics(), (RingStatistics{16, 4, 12, 0, 0}));
  EXPECT_GT(across.statistics().messages, 0);
}

TEST(RingDilatedAttention, TakesTheShardOfItsRankWithACommunicator) {
  const RingInputs in = ring_inputs({1, 48, 48, 4, 4, 4, 4});
  ImprovedDilatedAttention single({16, 32}, {1, 2});
  const Tensor want = single(in.q, in.k, in.v);
  for (const Layout layout : layouts) {
    LocalGroup group(4);
    std::vector<Tensor> parts(4);
    group.run(1, [&](Communicator& c, int) {
      RingDilatedAttention ring({16, 32}, {1, 2}, {.layout = layout, .communicator = group.communicator(c.rank())});
      const auto mine = [&](const Tensor& x) { return take_shard(x, layout, c.rank(), 4); };
      parts[static_cast<std::size_t>(c.rank())] = ring(mine(in.q), mine(in.k), mine(in.v));
    });
    EXPECT_TRUE(allclose(join_shards(parts, layout), want, 1e-12, 1e-12)) << to_string(layout);
  }
}

TEST(RingDilatedAttention, ServesInTheMultiheadShell) {
  const auto shell = [](std::unique_ptr<AttentionCore> core) {
    Generator generator(6);
    return std::make_unique<MultiheadShell>(16, 4, std::move(core), MultiheadOptions{.causal = true},
                                            nn::ParameterOptions{.dtype = DType::f64, .generator = &generator});
  };
  const auto ring = shell(std::make_unique<RingDilatedAttention>(std::vector<std::int64_t>{8, 16},
                                                                 std::vector<std::int64_t>{1, 2}, RingSetup{3}));
  const auto single = shell(
      std::make_unique<ImprovedDilatedAttention>(std::vector<std::int64_t>{8, 16}, std::vector<std::int64_t>{1, 2}));
  Generator generator(7);
  const Tensor x = randn({2, 37, 16}, {.dtype = DType::f64}, generator);
  EXPECT_TRUE(allclose(ring->forward(x), single->forward(x), 1e-12, 1e-12));
}

TEST(BlockSparseRingDilatedAttention, EqualsBlockSparseAttentionOfOneDevice) {
  const RingInputs in = ring_inputs({1, 150, 150, 2, 1, 4, 4});
  for (const SparsePatternType type : {SparsePatternType::local_window, SparsePatternType::dilated_sparse,
                                       SparsePatternType::global_local, SparsePatternType::random})
    for (const bool causal : {false, true}) {
      const SparsePatternConfig config{.pattern_type = type, .block_size = 16, .sparsity_ratio = 0.4};
      BlockSparseDilatedAttention single(config, {}, {16, 48}, {1, 3});
      BlockSparseRingDilatedAttention ring(
          config, {.ring_size = 3, .layout = Layout::striped, .exchange = Exchange::all_gather}, {}, {16, 48}, {1, 3});
      EXPECT_EQ(differences(outcome_of_module(ring, in, causal), outcome_of_module(single, in, causal), 1e-12), "")
          << to_string(type);
    }
}

TEST(BlockSparseRingDilatedAttention, ChoosesTheBlocksOfTheWholeSequence) {
  const RingInputs in = ring_inputs({1, 128, 128, 2, 2, 4, 4});
  const SparsePatternConfig config{.block_size = 16, .sparsity_ratio = 0.3};
  const Tensor want = BlockSparseDilatedAttention(config)(in.q, in.k, in.v);
  LocalGroup group(4);
  std::vector<Tensor> parts(4);
  group.run(1, [&](Communicator& c, int) {
    BlockSparseRingDilatedAttention ring(config, {.communicator = group.communicator(c.rank())});
    const auto mine = [&](const Tensor& x) { return take_shard(x, Layout::contiguous, c.rank(), 4); };
    parts[static_cast<std::size_t>(c.rank())] = ring(mine(in.q), mine(in.k), mine(in.v));
  });
  EXPECT_TRUE(allclose(join_shards(parts, Layout::contiguous), want, 1e-12, 1e-12));
}

TEST(RingAttention, EqualsAttendForEveryPattern) {
  const RingInputs in = ring_inputs({1, 33, 33, 2, 2, 4, 4});
  const Pattern pattern = Pattern::window(7, 2);
  RingAttention ring(pattern, {.ring_size = 4, .layout = Layout::zigzag, .progress = LocalGroup::Progress::threads});
  EXPECT_TRUE(allclose(ring(in.q, in.k, in.v), attend(in.q, in.k, in.v, pattern).out, 1e-12, 1e-12));
  EXPECT_TRUE(allclose(ring(in.q, in.k, in.v, {.causal = true}),
                       attend(in.q, in.k, in.v, pattern & Pattern::causal()).out, 1e-12, 1e-12));
}

/// Joins the results of all ranks, each called with its shard. `told`: the layer knows its positions.
using OfParts = std::function<Tensor(MultiheadAttention& layer, const std::function<Tensor(const Tensor&)>& mine)>;
Tensor of_ranks(int ranks, Layout layout, std::int64_t length, bool told, const OfParts& call) {
  LocalGroup group(ranks);
  std::vector<Tensor> parts(static_cast<std::size_t>(ranks));
  group.run(1, [&](Communicator& c, int) {
    Generator generator(6);
    MultiheadAttention layer(
        16, 4, {.rope = 100.0, .causal = true}, {.dtype = DType::f64, .generator = &generator}, Pattern::dense(),
        RingSetup{.layout = layout, .communicator = group.communicator(c.rank()), .parts_are_told = told});
    if (told) layer.set_part({.whole = length, .positions = shard_map(layout, length, c.rank(), ranks)});
    parts[static_cast<std::size_t>(c.rank())] =
        call(layer, [&](const Tensor& x) { return take_shard(x, layout, c.rank(), ranks); });
  });
  return join_shards(parts, layout);
}

TEST(RingAttention, RotatesByThePositionsOfTheWholeSequence) {
  Generator generator(6), other(7);
  MultiheadAttention single(16, 4, {.rope = 100.0, .causal = true}, {.dtype = DType::f64, .generator = &generator},
                            Pattern::dense());
  const NoGradGuard no_grad;
  for (const Layout layout : layouts)
    for (const auto& [ranks, length] : {std::pair{2, 40}, {3, 27}, {4, 32}}) {
      SCOPED_TRACE(to_string(layout) + " of " + std::to_string(ranks));
      const Tensor x = randn({2, length, 16}, {.dtype = DType::f64}, other), y = randn(x.shape(), x.options(), other);
      for (const bool told : {false, true}) {
        const Tensor self = of_ranks(ranks, layout, length, told,
                                     [&](MultiheadAttention& layer, const auto& mine) { return layer(mine(x)); });
        EXPECT_TRUE(allclose(self, single(x), 1e-12, 1e-12)) << told;
        const Tensor cross = of_ranks(ranks, layout, length, told, [&](MultiheadAttention& layer, const auto& mine) {
          return layer(mine(y), mine(x), mine(x), {.causal = true});
        });
        EXPECT_TRUE(allclose(cross, single(y, x, x, {.causal = true}), 1e-12, 1e-12)) << told;
      }
      const Tensor last = slice(y, 1, length - 2 * ranks);  // the last positions of the sequence
      const Tensor of_last = of_ranks(ranks, layout, length, false, [&](MultiheadAttention& layer, const auto& mine) {
        return layer(mine(last), mine(x), mine(x), {.causal = true});
      });
      EXPECT_TRUE(allclose(of_last, single(last, x, x, {.causal = true}), 1e-12, 1e-12));
    }
}

TEST(RingAttention, ReturnsTheWeightsOfItsShardOverTheWholeSequence) {
  Generator generator(6), other(7);
  MultiheadAttention single(16, 4, {.rope = 100.0, .causal = true}, {.dtype = DType::f64, .generator = &generator},
                            Pattern::dense());
  const NoGradGuard no_grad;
  for (const Layout layout : layouts)
    for (const auto& [ranks, length] : {std::pair{1, 6}, {2, 12}, {3, 24}})
      for (const bool told : {false, true}) {
        const Tensor x = randn({2, length, 16}, {.dtype = DType::f64}, other);
        // join_shards() joins dimension 1, so the dimension of queries is moved there and back.
        const Tensor found = of_ranks(ranks, layout, length, told, [&](MultiheadAttention& layer, const auto& mine) {
          return permute(layer.weights(mine(x)), {0, 2, 1, 3});
        });
        EXPECT_TRUE(allclose(permute(found, {0, 2, 1, 3}), single.weights(x), 1e-12, 1e-12))
            << to_string(layout) << " of " << ranks << (told ? ", told" : "");
      }
}

TEST(MultiheadAttention, DropsTheSameWeightsInPartOfABatch) {
  Generator drawn(5), generator(6);
  MultiheadAttention layer(16, 4, {}, {.dtype = DType::f64, .generator = &generator}, Pattern::dense(), RingSetup{},
                           CoreOptions{.dropout = 0.5, .generator = &drawn});
  const Tensor x = randn({4, 9, 16}, {.dtype = DType::f64}, generator), whole = layer(x, x, x);
  layer.set_part({.first_row = 2, .rows = 4});
  drawn = Generator(5);
  const Tensor half = slice(x, 0, 2, 4);
  EXPECT_EQ(max_difference(layer(half, half, half), slice(whole, 0, 2, 4)), 0.0);
}

TEST(RingAttention, RefusesInvalidOptions) {
  EXPECT_EQ(error_of<ValueError>([] { RingAttention(Pattern::dense(), {.ring_size = 0}); }),
            "[ring_attention] needs at least one rank: ring_size 0");
  const LocalGroup group(2);
  EXPECT_EQ(error_of<ValueError>(
                [&] { RingDilatedAttention({8}, {1}, {.ring_size = 3, .communicator = group.communicator(0)}); }),
            "[ring_attention] the communicator has another number of ranks: ring_size 3, communicator of 2");
  RingAttention ring(Pattern::dense(), {.ring_size = 2});
  const Tensor x = ones({1, 4, 2, 8});
  EXPECT_THAT(error_of<ValueError>([&] {
                ring(x, x, x, {.bias = ones({1, 1, 4, 4})});
              }),
              ::testing::HasSubstr("a bias of all pairs is not divided among ranks"));
  RingDilatedAttention grouped({4, 8, 16}, {1, 2, 4}, {.ring_size = 2}, {.mode = DilatedMode::grouped});
  EXPECT_THAT(error_of<ValueError>([&] { grouped(x, x, x); }), ::testing::HasSubstr("every branch needs a head"));
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
