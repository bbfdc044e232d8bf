// Traces of attention and its modules name the line of this file that made or called them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

#include "attention/modules/buffers.h"
#include "attention/modules/named.h"
#include "attention/ring/ring.h"
#include "autograd/operators/views.h"
#include "tensor/creation.h"
#include "tests/call_sites.h"

namespace poolgrad::attention {
namespace {

using poolgrad::testing_support::expect_this_line;
using poolgrad::testing_support::places;
using ::testing::_;
using ::testing::Contains;
using ::testing::Each;
using ::testing::FieldsAre;

constexpr std::int64_t model_width = 16, model_heads = 2;

struct CallSitesOfAttention : ::testing::Test {
  Tensor q = randn({1, 64, model_heads, 8}), k = randn({1, 64, model_heads, 8}), v = randn({1, 64, model_heads, 8});
};

TEST_F(CallSitesOfAttention, NameTheLineOfTheCall) {
  const auto causal = Pattern::causal();
  expect_this_line([&] { attend(q, k, v); });
  expect_this_line([&] { attend_by_definition(q, k, v); });
  expect_this_line([&] { alibi_slopes(4); });
  expect_this_line([&] { ring_attend_all(q, k, v, causal, 2); });
  expect_this_line([&] { ring_attend_all(q, k, v, causal, 2, {}, LocalGroup::Progress::threads); });
  expect_this_line([&] { join_shards({take_shard(q, Layout::zigzag, 0, 1)}, Layout::zigzag); });
}

TEST_F(CallSitesOfAttention, NameTheLineThatRunsTheGroup) {
  LocalGroup group(2);
  const auto body = [&](Communicator& rank, int) {
    const Tensor own = slice(q, 1, 32 * rank.rank(), 32 * rank.rank() + 32);
    ring_attend(own, own, own, Pattern::dense(), group.communicator(rank.rank()));
  };
  const CallSite site;
  const unsigned line = __LINE__ - 1;
  EXPECT_THAT(places([&] { group.run(1, body); }, true), Each(FieldsAre("call_site_test.cpp", line, _)));
}

TEST_F(CallSitesOfAttention, NameTheLineOfACoreCall) {
  const std::vector<std::int64_t> segments{32, 64}, rates{1, 2};
  ImprovedDilatedAttention improved(segments, rates);
  RingDilatedAttention ring(segments, rates, {.ring_size = 2});
  BlockSparseDilatedAttention sparse;
  AdaptiveBlockSparseAttention adaptive(8, {.block_size = 16, .selected = 2});
  expect_this_line([&] { improved(q, k, v); });
  expect_this_line([&] { ring(q, k, v); });
  expect_this_line([&] { sparse(q, k, v); });
  expect_this_line([&] { adaptive(q, k, v); });
  expect_this_line([&] { adaptive.selection().select(q, k, true); });
  expect_this_line([&] { adaptive.selection().summary_attention(q, k, v, true); });
  q.set_requires_grad();
  Tensor out;
  expect_this_line([&] { out = improved(q, k, v); });
  EXPECT_THAT(places([&] { out.backward(v); }), Contains(FieldsAre("call_site_test.cpp", __LINE__ - 1, _)));
}

TEST_F(CallSitesOfAttention, NameTheLineOfAModulesConstruction) {
  expect_this_line([] { const BlockSelection selection(8); });
  expect_this_line([] { const AdaptiveBlockSparseAttention core(8); });
  expect_this_line([] { const MultiheadShell shell(model_width, model_heads, std::make_unique<RingAttention>()); });
  expect_this_line([] { const MultiheadAttention shell(model_width, model_heads, {}, {}); });
  expect_this_line([] { const AdaptiveBlockSparseMultihead shell(model_width, model_heads, {}, {}, 8); });
  expect_this_line([] { create_block_sparse_attention("adaptive"); });
  expect_this_line([] { create_multihead_dilated_attention("improved", model_width, model_heads); });
  expect_this_line([] { create_multihead_block_sparse_attention("adaptive", model_width, model_heads); });
  expect_this_line([] { make_language_model({.layers = 1}, Pattern::causal()); });
  expect_this_line([] { preallocate_buffers(1, 64, model_heads, 8); });
}

TEST_F(CallSitesOfAttention, NameTheLineOfAModuleCall) {
  MultiheadAttention shell(model_width, model_heads, {.rope = RopeOptions()}, {});
  const std::unique_ptr<nn::SequenceMixer> mixer =
      create_multihead_dilated_attention("improved", model_width, model_heads);
  const auto model = make_language_model({.context = 64, .layers = 1}, Pattern::causal());
  nn::SequenceState state;
  const Tensor x = randn({1, 64, model_width}), tokens = zeros({1, 64}, {.dtype = DType::i64});
  expect_this_line([&] { shell(x); });
  expect_this_line([&] { shell(x, &state); });
  expect_this_line([&] { shell(x, x, x); });
  expect_this_line([&] { shell.forward(x, x, x); });
  expect_this_line([&] { (*mixer)(x); });
  expect_this_line([&] { model->loss(tokens, tokens).backward(); });
  expect_this_line([&] { model->mixing_weights(tokens); });
}

}  // namespace
}  // namespace poolgrad::attention
