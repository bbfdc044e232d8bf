// Options common to all named modules: every module must apply them.
#include "attention/modules/attention_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/attend.h"
#include "attention/modules/named.h"
#include "tensor/compare.h"
#include "tensor/creation.h"
#include "tests/attention/attend_support.h"
#include "tests/attention/ring/ring_support.h"
#include "tests/tensor/support.h"

namespace poolgrad::attention::testing_support {
namespace {

using poolgrad::testing_support::error_of;
using ::testing::HasSubstr;

struct Named {
  std::string name;
  std::shared_ptr<AttentionCore> core;
  Pattern pattern;
};

std::vector<Named> every_core(const CoreOptions& options) {
  const std::vector<std::int64_t> w{8, 16}, r{1, 2};
  const Pattern dilated = Pattern::dilated(w, r);
  const SparsePatternConfig blocks{.block_size = 16, .window_size = 32};
  const Pattern window = Pattern::local_window(16, 32);
  std::vector<Named> all{
      {"dilated", std::make_shared<DilatedAttention>(w, r, DilatedOptions{}, options), dilated},
      {"improved", std::make_shared<ImprovedDilatedAttention>(w, r, DilatedOptions{}, options), dilated},
      {"block-sparse", std::make_shared<BlockSparseDilatedAttention>(blocks, options), window},
      {"hierarchical",
       std::make_shared<HierarchicalBlockSparse>(std::vector<HierarchyLevel>{{16, 32, 16}, {32, -1, 16}}, options),
       window | Pattern::spaced_blocks(16, 2)}};
  for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
      const RingSetup ring{.ring_size = 3, .layout = layout, .exchange = exchange};
      const std::string name = " over a ring, " + to_string(layout);
      all.push_back({"any pattern" + name, std::make_shared<RingAttention>(Pattern::window(9, 9), ring, options),
                     Pattern::window(9, 9)});
      all.push_back(
          {"dilated" + name, std::make_shared<RingDilatedAttention>(w, r, ring, DilatedOptions{}, options), dilated});
      all.push_back(
          {"block-sparse" + name, std::make_shared<BlockSparseRingDilatedAttention>(blocks, ring, options), window});
    }
  return all;
}

/// Selects all blocks with a closed gate: the coarse branch, which ignores scores, adds 0.
std::shared_ptr<AttentionCore> adaptive_of_all_blocks(const CoreOptions& options) {
  const BlockSelectionOptions all{.block_size = 16, .sparsity_ratio = 1.0};
  auto core =
      std::make_shared<AdaptiveBlockSparseAttention>(4, all, options, nn::ParameterOptions{.dtype = DType::f64});
  for (const auto& [name, parameter] : core->named_parameters())
    if (name == "gate_bias") Tensor(parameter.detach()).fill(-1000.0);
  return core;
}

/// (B, N): padding after the length of each batch entry, and one key in the middle.
Tensor some_padding(std::int64_t length, const std::vector<std::int64_t>& lengths) {
  std::vector<double> padding;
  for (const std::int64_t kept : lengths)
    for (std::int64_t j = 0; j < length; ++j) padding.push_back(j >= kept || j == 5);
  const auto batch = static_cast<std::int64_t>(lengths.size());
  return to(from_data(padding, {batch, length}), DType::boolean);
}

TEST(AttentionCore, EveryModuleTakesSoftcapSlopesSinksAndKeyPadding) {
  constexpr std::int64_t length = 41, heads = 4;
  const RingInputs in = ring_inputs({3, length, length, heads, 2, 4, 3});
  Generator generator(9);
  const Tensor sinks = randn({heads}, {.dtype = DType::f64}, generator), slopes = alibi_slopes(heads, sinks.options());
  const Tensor padding = some_padding(length, {41, 20, 0});  // the last entry sees no key
  const Tensor bias =
      masked_fill(zeros({3, 1, 1, length}, {.dtype = DType::f64}), reshape(padding, {3, 1, 1, length}), -infinity);
  std::vector<Named> cores = every_core({.scale = 0.6, .softcap = 0.9});
  cores.push_back({"adaptive, all blocks", adaptive_of_all_blocks({.scale = 0.6, .softcap = 0.9}), Pattern::dense()});
  for (const Named& one : cores)
    for (const bool causal : {false, true}) {
      const auto without_lse = [](const Tensor& out) { return Attended{out, zeros({1}, {.dtype = DType::f64})}; };
      const RingOutcome got = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
        return without_lse(
            (*one.core)(q, k, v, {.causal = causal, .key_padding = padding, .alibi = slopes, .sinks = s}));
      });
      const RingOutcome want = outcome_of(in, sinks, [&](const auto& q, const auto& k, const auto& v, const auto& s) {
        return without_lse(
            attend_by_definition(q, k, v, causal ? one.pattern & Pattern::causal() : one.pattern,
                                 {.scale = 0.6, .softcap = 0.9, .bias = bias, .alibi = slopes, .sinks = s})
                .out);
      });
      EXPECT_EQ(differences(got, want, 1e-11), "") << one.name << (causal ? ", causal" : "");
    }
}

// A write to the mask after the forward must not change the gradient: modules keep a copy or refuse the backward.
TEST(AttentionCore, AWriteToThePaddingAfterTheForwardChangesNoGradient) {
  constexpr std::int64_t length = 41;
  const RingInputs in = ring_inputs({2, length, length, 4, 2, 4, 3});
  for (const Named& one : every_core({})) {
    const auto gradient = [&](bool changes) {
      Tensor k = in.k.copy();
      k.set_requires_grad();
      Tensor padding = some_padding(length, {41, 20});
      const Tensor loss = sum((*one.core)(in.q, k, in.v, {.key_padding = padding}));
      if (changes) padding.fill(1);
      loss.backward();
      return k.grad();
    };
    EXPECT_EQ(gradient(true).to_vector<double>(), gradient(false).to_vector<double>()) << one.name;
  }
}

TEST(AttentionCore, AdaptiveBlocksRefusePaddingWrittenAfterTheForward) {
  AdaptiveBlockSparseAttention module(4, {.block_size = 16, .selected = 2}, {}, {.dtype = DType::f64});
  const RingInputs in = ring_inputs({2, 41, 41, 4, 2, 4, 3});
  Tensor k = in.k.copy();
  k.set_requires_grad();
  Tensor padding = some_padding(41, {41, 20});
  const Tensor loss = sum(module(in.q, k, in.v, {.key_padding = padding}));
  padding.fill(1);
  EXPECT_THAT(error_of<Error>([&] { loss.backward(); }),
              ::testing::HasSubstr("[masked_fill] a saved tensor (2, 41, 1, 1) bool on cpu was written in place"));
}

TEST(AttentionCore, AdaptiveBlocksIgnorePaddedPositions) {
  AdaptiveBlockSparseAttention module(4, {.block_size = 16, .selected = 2}, {}, {.dtype = DType::f64});
  constexpr std::int64_t length = 100;
  const RingInputs in = ring_inputs({2, length, length, 4, 2, 4, 3});
  for (const std::int64_t kept : {100, 80, 70, 33})
    for (const bool causal : {false, true}) {
      std::vector<double> behind;
      for (std::int64_t j = 0; j < 2 * length; ++j) behind.push_back(j % length >= kept);
      const Tensor padding = to(from_data(behind, {2, length}), DType::boolean);
      const auto first = [&](const Tensor& x) { return slice(x, 1, 0, kept); };
      const Tensor got = module(in.q, in.k, in.v, {.causal = causal, .key_padding = padding});
      const Tensor want = module(first(in.q), first(in.k), first(in.v), {.causal = causal});
      EXPECT_TRUE(allclose(first(got), want, 1e-11, 1e-12)) << kept << (causal ? " causal" : "");
    }
}

TEST(AttentionCore, ARingRankTakesThePaddingOfTheWholeSequence) {
  const RingInputs in = ring_inputs({2, 48, 48, 4, 4, 4, 4});
  const Tensor padding = some_padding(48, {48, 17});
  const Tensor want = RingAttention(Pattern::causal())(in.q, in.k, in.v, {.key_padding = padding});
  LocalGroup group(4);
  std::vector<Tensor> parts(4);
  group.run(1, [&](Communicator& c, int) {
    RingAttention ring(Pattern::causal(), {.layout = Layout::striped, .communicator = group.communicator(c.rank())});
    const auto mine = [&](const Tensor& x) { return take_shard(x, Layout::striped, c.rank(), 4); };
    parts[static_cast<std::size_t>(c.rank())] = ring(mine(in.q), mine(in.k), mine(in.v), {.key_padding = padding});
  });
  EXPECT_TRUE(allclose(join_shards(parts, Layout::striped), want, 1e-12, 1e-12));
  RingAttention ring(Pattern::causal(), {.ring_size = 2});
  EXPECT_EQ(error_of<ShapeError>([&] { ring(in.q, in.k, in.v, {.key_padding = slice(padding, 1, 0, 24)}); }),
            "[ring_attend] the key padding must be (B, Nk) with Nk 48: q (2, 48, 4, 4) f64 on cpu, key_padding (2, 24) "
            "bool on cpu");
}

/// A shell around a pattern equals a shell around the module of that pattern.
TEST(AttentionCore, AShellGivesItsCoreSlopesAndSinks) {
  Generator generator(4);
  MultiheadOptions options{.kv_heads = 2,
                           .bias = false,
                           .layer_norm = false,
                           .post_norm = false,
                           .qk_norm = true,
                           .rope = 10000.0,
                           .alibi = true,
                           .sinks = true};
  MultiheadAttention by_pattern(16, 4, options, {.dtype = DType::f64},
                                Pattern::dilated({8, 16}, {1, 2}) & Pattern::causal(), RingSetup{},
                                CoreOptions{.softcap = 2.0});
  for (Tensor& parameter : by_pattern.parameters())
    Tensor(parameter.detach()).copy_from(randn(parameter.shape(), parameter.options(), generator));
  options.causal = true;
  RingMultiheadDilatedAttention by_name(16, 4, options, {.dtype = DType::f64}, std::vector<std::int64_t>{8, 16},
                                        std::vector<std::int64_t>{1, 2}, RingSetup{.ring_size = 3}, DilatedOptions{},
                                        CoreOptions{.softcap = 2.0});
  by_name.load(by_pattern.named_parameters());
  const Tensor x = randn({2, 35, 16}, {.dtype = DType::f64}, generator);
  const Tensor a = by_pattern.forward(x), b = by_name.forward(x);
  EXPECT_TRUE(allclose(a, b, 1e-11, 1e-12));
  sum(square(a)).backward();
  sum(square(b)).backward();
  const auto left = by_pattern.named_parameters(), right = by_name.named_parameters();
  ASSERT_EQ(left.size(), right.size());
  for (std::size_t n = 0; n < left.size(); ++n) {
    EXPECT_GT(norm(left[n].second.grad()).item(), 0.0) << left[n].first;
    EXPECT_TRUE(allclose(left[n].second.grad(), right[n].second.grad(), 1e-9, 1e-10)) << left[n].first;
  }
  const Tensor padding = some_padding(35, {35, 20});
  EXPECT_TRUE(allclose(by_name.forward(x, x, x, {.causal = true, .key_padding = padding}),
                       by_pattern.forward(x, x, x, {.key_padding = padding}), 1e-11, 1e-12));
}

TEST(AttentionCore, RefusesInvalidOptions) {
  for (const double softcap : {0.0, -1.0, infinity})
    EXPECT_THAT(error_of<ValueError>([&] { ImprovedDilatedAttention({8}, {1}, {}, {.softcap = softcap}); }),
                HasSubstr("[attention] the softcap must be a positive number"));
  EXPECT_EQ(error_of<ValueError>([&] { ImprovedDilatedAttention({8}, {1}, {}, {.dropout = 1.0}); }),
            "[attention] dropout must be in [0, 1): 1.000000");
  EXPECT_THAT(error_of<ValueError>([] { MultiheadShell(8, 2, std::make_unique<RingAttention>(), {.qk_norm = true}); }),
              HasSubstr("[multihead] layer_norm and qk_norm exclude each other"));
}

}  // namespace
}  // namespace poolgrad::attention::testing_support
