// Lists of layers, as --layers reads them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/support/train.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using attention::Pattern;
using ::testing::HasSubstr;
using testing_support::error_of;

std::string entry_refusal(const std::string& list) {
  return error_of<ValueError>([&] {
    const nn::LanguageModelConfig model{.context = 64, .layers = 1, .width = 64, .heads = 4, .kv_heads = 4};
    check_layers(LayerList(list).runs({}), model, "train");
  });
}

TEST(LayerList, ANumberRepeatsTheDefaultKind) {
  AttentionOptions usual;
  usual.attention = "strided";
  usual.stride = 9;
  const auto runs = LayerList(3).runs(usual);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].count, 3);
  EXPECT_EQ(runs[0].attention.pattern(64, "train"), usual.pattern(64, "train"));
  EXPECT_EQ(LayerList(3).text(), "3");
  EXPECT_TRUE(LayerList("3").is_number());
  EXPECT_EQ(LayerList("3").count(), 3);
}

TEST(LayerList, AnEntryDescribesOneOrSeveralLayers) {
  const LayerList list("5*window:512+rope,nope:causal,block_sparse:32:0/3+sinks+qk-norm+softcap:30.5");
  EXPECT_FALSE(list.is_number());
  EXPECT_EQ(list.count(), 7);
  const auto runs = list.runs({});
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].count, 5);
  EXPECT_EQ(runs[0].attention.pattern(64, "train"), Pattern::window(511, 0));
  EXPECT_TRUE(runs[0].attention.rope.has_value());
  EXPECT_EQ(runs[1].attention.pattern(64, "train"), Pattern::causal());
  EXPECT_FALSE(runs[1].attention.rope.has_value());
  EXPECT_EQ(runs[2].attention.pattern(64, "train"), Pattern::block_offsets(32, {0, -3}) & Pattern::causal());
  EXPECT_TRUE(runs[2].attention.sinks && runs[2].attention.qk_norm);
  EXPECT_EQ(runs[2].attention.softcap, 30.5);
  EXPECT_EQ(describe_layers(runs, 64), "5 times window of 512; causal, no positions; " +
                                           runs[2].attention.pattern(64, "").to_string() +
                                           ", softcap 30.5, sinks, qk-norm");
  EXPECT_EQ(kinds_of(runs), (std::vector<std::string>{"window", "causal", "block_sparse"}));
}

TEST(LayerList, FillsEntriesFromTheOptions) {
  AttentionOptions usual;
  usual.window = 40;
  usual.rope = RopeOptions(1e6);
  const auto runs = LayerList("window,window:9+rope,window+rope:500:yarn:4:64,global_local:16+heads:2").runs(usual);
  EXPECT_EQ(runs[0].attention.window, 40);
  EXPECT_EQ(runs[1].attention.window, 9);
  EXPECT_EQ(runs[1].attention.rope->base, 1e6);
  EXPECT_EQ(runs[2].attention.rope->base, 500);
  EXPECT_EQ(runs[2].attention.rope->scaling, RopeScaling::yarn);
  EXPECT_EQ(runs[2].attention.rope->factor, 4);
  EXPECT_EQ(runs[2].attention.rope->trained_context, 64);
  EXPECT_EQ(runs[3].attention.window, 16);
  EXPECT_EQ(runs[3].attention.block, usual.block);
  const nn::LanguageModelConfig model{.heads = 4, .kv_heads = 2};
  EXPECT_EQ(runs[0].heads(model), 4);
  EXPECT_EQ(runs[0].kv_heads(model), 2);
  EXPECT_EQ(runs[3].heads(model), 2);
  EXPECT_EQ(runs[3].kv_heads(model), 2);
}

TEST(LayerList, ReadsWindowBlockAndCountOfNativeSparseAttention) {
  const auto runs = LayerList("2*nsa:100:32:5+nope+kv-heads:1,nsa").runs({});
  EXPECT_EQ(describe_layers(runs, 64),
            "2 times window of 100 and 5 blocks of 32 selected, no positions, 1 head for keys; window of 256 and 16 "
            "blocks of 64 selected");
  const std::vector<attention::MixerSpec> specs = specs_of(runs, 64, "train");
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[0].sparse->window, 100);
  EXPECT_EQ(specs[0].sparse->block, 32);
  EXPECT_EQ(specs[0].sparse->count, 5);
  EXPECT_EQ(specs[0].multihead.kv_heads, 1);
}

TEST(LayerList, MixesRecurrentLayersWithAttention) {
  const LayerList list("3*delta,gla:32:3+heads:2,1*causal+nope");
  const auto runs = list.runs({});
  EXPECT_EQ(describe_layers(runs, 64),
            "3 times gated delta rule; gated linear attention, 2 heads; causal, no positions");
  const std::vector<attention::MixerSpec> specs = specs_of(runs, 64, "train");
  ASSERT_EQ(specs.size(), 5u);
  EXPECT_TRUE(specs[2].recurrent->delta);
  EXPECT_EQ(specs[2].recurrent->chunk, 64);
  EXPECT_FALSE(specs[3].recurrent->delta);
  EXPECT_EQ(specs[3].recurrent->chunk, 32);
  EXPECT_EQ(specs[3].recurrent->convolution, 3);
  EXPECT_EQ(specs[3].heads, 2);
  EXPECT_FALSE(specs[4].recurrent.has_value());
  EXPECT_EQ(entry_refusal("delta+nope+heads:64"), "no exception");
}

TEST(LayerList, NamesTheBadEntryAndItsPlace) {
  const std::pair<const char*, const char*> wrong[] = {
      {"window,windw:9", "entry 2, windw:9: it has an unknown part windw: did you mean window?"},
      {"", "entry 1, : it has an unknown part "},
      {"causal,,window", "entry 2, : it has an unknown part "},
      {"nope", "entry 1, nope: it names no kind of attention, such as causal"},
      {"causal+window", "entry 1, causal+window: it gives a kind twice"},
      {"causal+nope+rope", "entry 1, causal+nope+rope: it gives positions twice"},
      {"causal+heads:2+heads:2", "entry 1, causal+heads:2+heads:2: it gives heads twice"},
      {"0*causal", "entry 1, 0*causal: a repetition must be at least 1"},
      {"x*causal", "entry 1, x*causal: x cannot be a value of a repetition"},
      {"window:x", "entry 1, window:x: x cannot be a value of window"},
      {"window:1:2", "entry 1, window:1:2: window has 1 value, not 2"},
      {"causal:1", "entry 1, causal:1: causal has 0 values, not 1"},
      {"2*causal,window:0", "entry 2, window:0: --window must be at least 1, but is 0"},
      {"causal+softcap:0", "entry 1, causal+softcap:0: softcap must be positive"},
      {"causal+softcap:nan", "entry 1, causal+softcap:nan: nan cannot be a value of softcap"},
      {"causal+softcap", "entry 1, causal+softcap: softcap needs a value, such as softcap:4"},
      {"causal+sinks:1", "entry 1, causal+sinks:1: sinks has 0 values, not 1"},
      {"causal+heads:0", "entry 1, causal+heads:0: heads must be at least 1"},
      {"causal+heads:3", "entry 1, causal+heads:3: --width 64 is not divisible by 3 heads"},
      {"causal+heads:64",
       "entry 1, causal+heads:64: --width 64 / 64 heads must be even, because rotary positions rotate pairs"},
      {"causal+kv-heads:3", "entry 1, causal+kv-heads:3: 4 heads are not a multiple of 3 kv-heads"},
      {"causal+rope:0", "entry 1, causal+rope:0: the base of rope must be positive"},
      {"causal+rope:9:cubic:2",
       "entry 1, causal+rope:9:cubic:2: the scaling of rope must be linear, ntk or yarn, but is cubic"},
      {"causal+rope:9:ntk", "entry 1, causal+rope:9:ntk: ntk needs rope:BASE:ntk:FACTOR"},
      {"causal+rope:9:yarn:2",
       "entry 1, causal+rope:9:yarn:2: yarn needs rope:BASE:yarn:FACTOR:TRAINED, with the trained context"},
      {"causal+rope:9:linear:0.5", "entry 1, causal+rope:9:linear:0.5: the factor of rope must be at least 1"},
      {"delta+rope", "entry 1, delta+rope: delta takes no rope"},
      {"gla+softcap:3", "entry 1, gla+softcap:3: gla takes no softcap"},
      {"nsa+sinks", "entry 1, nsa+sinks: nsa takes no sinks"},
      {"nsa:9:16:0", "entry 1, nsa:9:16:0: --count must be at least 1, but is 0"},
      {"delta+kv-heads:2", "entry 1, delta+kv-heads:2: delta takes no kv-heads"},
      {"delta:0", "entry 1, delta:0: --state-chunk must be at least 1, but is 0"},
      {"delta+heads:3", "entry 1, delta+heads:3: --width 64 is not divisible by 3 heads"},
      {"65536*causal,causal", "entry 2, causal: a list has at most 65536 layers"},
      {"9223372036854775807*causal", "entry 1, 9223372036854775807*causal: a list has at most 65536 layers"}};
  for (const auto& [list, said] : wrong) EXPECT_EQ(entry_refusal(list), "[--layers] " + std::string(said)) << list;
  EXPECT_EQ(entry_refusal("causal+nope+heads:64"), "no exception") << "nothing is turned there";
  EXPECT_EQ(error_of<ValueError>([&] { check_one_source(LayerList("causal"), {"attention"}); }),
            "[--attention] --layers already lists the attention of each layer: give one of the two options");
  EXPECT_NO_THROW(check_one_source(LayerList(2), {"attention"}));
}

TEST(LayerList, ListsTheCompared) {
  const auto by_kind = contenders_of(3, "causal,window", "compare");
  ASSERT_EQ(by_kind.size(), 2u);
  EXPECT_EQ(by_kind[1].name, "window");
  EXPECT_EQ(by_kind[1].kind, "window");
  EXPECT_EQ(by_kind[1].layers.count(), 3);
  const auto lists = contenders_of(LayerList("2*window;window,causal+nope"), "dilated", "compare");
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[1].name, "window,causal+nope");
  EXPECT_EQ(lists[1].layers.count(), 2);
  EXPECT_EQ(error_of<ValueError>([] { contenders_of(LayerList("causal;causal"), "", "compare"); }),
            "[compare] --layers names causal twice");
}

}  // namespace
}  // namespace poolgrad::examples
