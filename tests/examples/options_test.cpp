// The options of programs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "allocator/base/number.h"
#include "examples/support/train.h"
#include "kernels/gemm.h"
#include "kernels/instruction_sets.h"
#include "tests/tensor/support.h"

namespace poolgrad::examples {
namespace {

using attention::Pattern;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing_support::error_of;

AttentionOptions named(const std::string& name) {
  AttentionOptions options;
  options.attention = name;
  return options;
}

template <class Change>
std::string refusal(const std::string& name, const Change& change) {
  AttentionOptions options = named(name);
  change(options);
  return error_of<ValueError>([&] { options.pattern(1024, "train"); });
}

TEST(AttentionOptions, EveryNameIsACausalPatternWithItsDiagonal) {
  for (const std::string& name : attention_names()) {
    const Pattern pattern = named(name).pattern(256, "train");
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 256; i += 7) {
        EXPECT_GE(pattern.multiplicity(h, 4, i, i), 1) << name << " head " << h << " at " << i;
        for (std::int64_t j = i + 1; j < 256; ++j) ASSERT_EQ(pattern.multiplicity(h, 4, i, j), 0) << name;
      }
  }
}

TEST(AttentionOptions, MakeTheirPatterns) {
  const Pattern causal = Pattern::causal();
  EXPECT_EQ(named("causal").pattern(64, "train"), causal);
  EXPECT_EQ(named("dense").pattern(64, "train"), causal);
  EXPECT_EQ(named("ring").pattern(64, "train"), causal);
  EXPECT_EQ(named("window").pattern(64, "train"), Pattern::window(255, 0));
  EXPECT_EQ(named("block_sparse").pattern(64, "train"), Pattern::block_offsets(64, {0, -1, -2, -4}) & causal);
  EXPECT_EQ(named("global_local").pattern(64, "train"), Pattern::global_local(64, 256, 64) & causal);
  EXPECT_EQ(named("strided").pattern(64, "train"), Pattern::strided(64) & causal);
  EXPECT_EQ(named("random").pattern(64, "train"), Pattern::random_blocks(64, 0.25) & causal);
  AttentionOptions dilated = named("dilated");
  dilated.segments = {64, 256};
  dilated.rates = {1, 4};
  EXPECT_EQ(dilated.pattern(64, "train"), Pattern::dilated({64, 256}, {1, 4}) & causal);
}

TEST(AttentionOptions, DilatedSegmentsSpanTheContextByDefault) {
  AttentionOptions options = named("dilated");
  for (const std::int64_t context : {1, 255, 256, 257, 4256, 8192, 100000}) {
    const auto segments = options.segments_for(context);
    EXPECT_GE(segments.back(), context);
    EXPECT_EQ(segments.size(), options.rates_for(context).size());
    EXPECT_NO_THROW(options.pattern(context, "train"));
  }
  EXPECT_EQ(options.segments_for(4256), (std::vector<std::int64_t>{256, 2048, 8192}));
  options.segments = {100};
  EXPECT_EQ(options.segments_for(4096), options.segments);
}

TEST(AttentionOptions, DilatedRatesGrowWithTheContext) {
  AttentionOptions options = named("dilated");
  EXPECT_EQ(options.rates_for(32768), (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(options.rates_for(32769), (std::vector<std::int64_t>{1, 2, 8}));
  EXPECT_EQ(options.segments_for(1000000), (std::vector<std::int64_t>{256, 16384, 1048576}));
  EXPECT_EQ(options.rates_for(1000000), (std::vector<std::int64_t>{1, 2, 128}));
  options.rates = {1, 2, 4};
  EXPECT_EQ(options.rates_for(1000000), options.rates);
}

TEST(AttentionOptions, RefuseBadValuesInOneSentence) {
  EXPECT_EQ(refusal("sliding", [](auto&) {}),
            "[train] --attention must be one of causal, dense, window, dilated, block_sparse, global_local, strided, "
            "random, ring, delta, gla, nsa, but is sliding");
  EXPECT_EQ(refusal("window", [](auto& o) { o.window = 0; }), "[train] --window must be at least 1, but is 0");
  EXPECT_THAT(refusal("dilated", [](auto& o) { o.segments = {64}; }), HasSubstr("[--segments, --rates] there must be"));
  EXPECT_THAT(refusal("dilated", [](auto& o) { o.rates = {1, 2, 0}; }), HasSubstr("[--segments, --rates] "));
  EXPECT_EQ(refusal("block_sparse",
                    [](auto& o) {
                      o.offsets = {0, -1};
                    }),
            "[train] --offsets count blocks back and must not be negative, but one is -1");
  EXPECT_THAT(refusal("block_sparse", [](auto& o) { o.block = 17; }), HasSubstr("17"));
  EXPECT_THAT(refusal("random", [](auto& o) { o.density = 1.5; }), HasSubstr("1.5"));
  EXPECT_EQ(refusal("ring", [](auto& o) { o.ring_size = 0; }), "[train] --ring-size must be at least 1, but is 0");
  EXPECT_THAT(refusal("ring", [](auto& o) { o.layout = "spiral"; }), HasSubstr("spiral"));
}

TEST(AttentionOptions, OptionsOfOtherKindsAreRefused) {
  const auto refused = [](const std::string& option, const std::vector<std::string>& kinds) {
    return error_of<ValueError>([&] { check_attention_options({option}, kinds); });
  };
  EXPECT_EQ(refused("block", {"window"}),
            "[--block] this option is only for --attention block_sparse, global_local, random, nsa, not for window");
  EXPECT_EQ(refused("ring-size", {"causal", "dense"}),
            "[--ring-size] this option is only for --attention ring, not for causal, dense");
  for (const auto& kinds : {std::vector<std::string>{"random"}, {"window", "global_local"}})
    EXPECT_NO_THROW(check_attention_options({"block", "steps", "attention"}, kinds));
  AttentionOptions options;
  for_each_attention_setting(options, [](const char* name, auto&, const std::string& help) {
    EXPECT_TRUE(help.starts_with(attention_kinds_of(name))) << help;
    for (const std::string& kind : split(std::string(attention_kinds_of(name)), ','))
      EXPECT_NO_THROW(check_attention_name(kind.substr(kind.find_first_not_of(' ')), "train", "--attention"));
  });
}

TEST(Options, SuggestTheNearestName) {
  const std::vector<std::string> names{"steps", "stride", "seed", "save", "save-every", "temperature"};
  EXPECT_EQ(nearest("stpes", names), "steps") << "two letters exchanged";
  EXPECT_EQ(nearest("step", names), "steps") << "the only one that begins so";
  EXPECT_EQ(nearest("temp", names), "temperature");
  EXPECT_EQ(nearest("sav", names), "save");
  EXPECT_EQ(nearest("saveevery", names), "save-every");
  EXPECT_EQ(nearest("strude", names), "stride");
  EXPECT_EQ(nearest("budget", names), "");
  EXPECT_EQ(nearest("", names), "");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Options, AreNamedInErrorsOfTheirValues) {
  const auto error = [](const std::string& text) {
    return error_of<ValueError>([&] { of_option("--size", [&]() -> int { throw ShapeError(text); }); });
  };
  EXPECT_EQ(error("[matmul] no: a, b"), "[--size] no: a, b");
  EXPECT_EQ(error("[train] --width is 3"), "[train] --width is 3") << "one is named already";
  EXPECT_EQ(error("[--width] is 3"), "[--width] is 3");
  EXPECT_EQ(error("no bracket"), "no bracket");
  EXPECT_EQ(of_option("--size", [] { return 3; }), 3);
  EXPECT_THROW(of_option("--size", []() -> int { throw OutOfMemoryError("[allocate] none"); }), OutOfMemoryError);
  EXPECT_THROW(of_option("--size", []() -> int { throw FileError("[read] none"); }), FileError);
}

TEST(Options, ReadTimes) {
  EXPECT_EQ(parse_seconds("90s"), 90);
  EXPECT_EQ(parse_seconds("4min"), 240);
  EXPECT_EQ(parse_seconds("1.5h"), 5400);
  EXPECT_EQ(parse_seconds("250ms"), 0.25);
  EXPECT_EQ(parse_seconds("3us"), 3 * 1e-6);
  EXPECT_EQ(parse_seconds("0ns"), 0);
  for (const char* text : {"", "s", "4", "4m", "inf s", "infs", "nans", "-1s", "1e999s"})
    EXPECT_EQ(parse_seconds(text), std::nullopt) << text;
}

TEST(AttentionOptions, DescribeThemselves) {
  EXPECT_EQ(named("window").describe(4096), "window of 256");
  EXPECT_EQ(named("ring").describe(4096), "causal over a zigzag ring of 4");
  EXPECT_THAT(named("dilated").describe(4096), HasSubstr("256 1024 4096"));
}

TEST(AttentionOptions, AreReadFromTheCommandLineWithCommas) {
  AttentionOptions options;
  CLI::App app;
  for_each_attention_setting(options, setting_adder(app));
  app.parse("--segments 16,64 --rates 1,4 --offsets 0,3 --block 32 --layout striped --density 0.5");
  EXPECT_EQ(options.segments, (std::vector<std::int64_t>{16, 64}));
  EXPECT_EQ(options.rates, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(options.offsets, (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(options.block, 32);
  EXPECT_EQ(options.layout, "striped");
}

TrainOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  TrainOptions options;
  EXPECT_EQ(parse_train_options(static_cast<int>(arguments.size()), arguments.data(), options), -1);
  return options;
}

template <class Change>
std::string train_refusal(const Change& change) {
  TrainOptions options;
  change(options);
  return error_of<Error>([&] { options.check(); });
}

TEST(TrainOptions, DefaultsAreTheRecipe) {
  const TrainOptions options = parse({});
  EXPECT_NO_THROW(options.check());
  EXPECT_TRUE(options.given.empty());
  EXPECT_EQ(options.context, 4096);
  EXPECT_EQ(options.model().kv_heads, 4);
  EXPECT_EQ(options.attention_in_force().pattern(options.context, "train"), attention::Pattern::window(255, 0));
  EXPECT_EQ(options.optimizer, "muon");
  EXPECT_EQ(options.learning_rate(), 2e-2);
}

TEST(TrainOptions, DefaultToTheRateOfTheOptimizer) {
  EXPECT_EQ(parse({"--optimizer", "adamw"}).learning_rate(), 3e-3);
  EXPECT_EQ(parse({"--optimizer", "sgd"}).learning_rate(), 0.1);
  EXPECT_EQ(parse({"--optimizer", "sgd", "--lr", "0.2"}).learning_rate(), 0.2);
  EXPECT_EQ(parse({"--optimizer", "sgd"}).configuration().at("lr"), "0.1") << "a checkpoint has the rate itself";
}

TEST(TrainOptions, GivenOptionsOverrideThePresetInAnyOrder) {
  const TrainOptions tiny = parse({"--preset", "tiny"});
  EXPECT_EQ(tiny.context, 1024);
  EXPECT_EQ(tiny.width, 64);
  EXPECT_FALSE(tiny.given.contains("width"));
  for (const TrainOptions& wider :
       {parse({"--preset", "tiny", "--width", "96"}), parse({"--width", "96", "--preset", "tiny"})}) {
    EXPECT_EQ(wider.width, 96);
    EXPECT_EQ(wider.context, 1024);
  }
  EXPECT_EQ(parse({"--preset", "small"}).configuration(), parse({}).configuration());
  for (const Preset& preset : presets())
    EXPECT_NO_THROW(parse({"--preset", preset.name.c_str()}).check()) << preset.name;
  for (const Preset& preset : presets())
    for (const auto& [name, value] : preset.settings)
      EXPECT_EQ(parse({"--preset", preset.name.c_str()}).configuration().at(name), value) << preset.name;
}

TEST(TrainOptions, ChooseHalfPrecisionOnlyWithHardwareSupport) {
  EXPECT_EQ(parse({}).dtype, "auto");
  EXPECT_EQ(TrainOptions().dtype, "f32") << "programs choose, the library does not";
  EXPECT_EQ(choose_dtype(true, "amx", "poolgrad, bf16: oneDNN 2.6.3").dtype, DType::bf16);
  EXPECT_EQ(choose_dtype(true, "amx", "poolgrad, bf16: oneDNN 2.6.3").reason, "amx multiplies it");
  EXPECT_EQ(choose_dtype(true, "avx512_bf16", "poolgrad, bf16: oneDNN 2.6.3").dtype, DType::bf16);
  EXPECT_EQ(choose_dtype(true, "avx512_bf16", "poolgrad, bf16: oneDNN 2.6.3").reason, "avx512_bf16 multiplies it");
  EXPECT_EQ(choose_dtype(true, "amx", "poolgrad").dtype, DType::f32);
  for (const char* set : {"avx2", "avx512", "emulated_bf16"}) {
    const DTypeChoice choice = choose_dtype(true, set, "poolgrad, bf16: oneDNN 2.6.3");
    EXPECT_EQ(choice.dtype, DType::f32);
    EXPECT_EQ(choice.reason, std::string(set) + " has no fast products of bf16");
  }
  EXPECT_EQ(choose_dtype(false, "avx2", "poolgrad").dtype, DType::bf16);
  EXPECT_EQ(choose_dtype(false, "avx2", "poolgrad").reason, "tensor cores multiply it");
  const DType here = choose_dtype(true, kernels::instruction_set(), kernels::gemm_backend()).dtype;
  EXPECT_EQ(parse({}).model().dtype, here);
  EXPECT_EQ(parse({"--device", "sim:8GiB,like=cpu"}).model().dtype, here) << "a plan is of the same run";
  EXPECT_EQ(parse({"--device", "sim:8GiB"}).model().dtype, DType::bf16) << "like a GPU";
  EXPECT_EQ(parse({"--autocast", "bf16"}).model().dtype, DType::f32);
  EXPECT_NO_THROW(parse({"--autocast", "bf16"}).check());
  EXPECT_EQ(parse({"--dtype", "f64"}).activations().reason, "");
}

TEST(Engines, NameTheInstructionSetAndTheReasonForIt) {
  const Engines chosen = engines_of(cpu);
  EXPECT_EQ(chosen.attention, kernels::instruction_set());
  EXPECT_EQ(chosen.reason, kernels::instruction_set_reason());
  const std::string why = chosen.reason.empty() ? "" : " (" + chosen.reason + ")";
  EXPECT_THAT(chosen.to_string(), EndsWith(", attention by " + std::string(kernels::instruction_set()) + why));

  kernels::set_instruction_set("emulated_bf16");
  EXPECT_THAT(engines_of(cpu).to_string(), EndsWith(", attention by emulated_bf16 (chosen by the program)"));
  kernels::set_instruction_set("auto");
  EXPECT_EQ((Engines{"2 threads", "poolgrad", "avx2"}).to_string(),
            "2 threads, products by poolgrad, attention by avx2");
  EXPECT_EQ((Engines{"2 threads", "poolgrad", "avx512_bf16", "faster here"}).to_string(),
            "2 threads, products by poolgrad, attention by avx512_bf16 (faster here)");
}

TEST(TrainOptions, ReadTheCommandLine) {
  const TrainOptions options =
      parse({"--text",      "a",      "b",       "--context", "128",      "--kv-heads", "2",
             "--attention", "causal", "--dtype", "bf16",      "--device", "sim:8GiB",   "--budget",
             "1GiB",        "--lr",   "0.01",    "--quiet",   "--json",   "out.json"});
  EXPECT_EQ(options.text, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.model().context, 128);
  EXPECT_EQ(options.model().kv_heads, 2);
  EXPECT_EQ(options.model().dtype, DType::bf16);
  EXPECT_EQ(options.attention_in_force().pattern(options.context, "train"), attention::Pattern::causal());
  EXPECT_EQ(options.lr, 0.01);
  EXPECT_TRUE(options.quiet);
  EXPECT_TRUE(options.given.contains("kv-heads"));
  EXPECT_FALSE(options.given.contains("width"));
}

TEST(TrainOptions, ConfigureTheModelAndItsCheckpoints) {
  const TrainOptions options = parse({"--feed-forward", "swiglu", "--tied-head", "--logit-softcap", "30"});
  EXPECT_EQ(options.model().feed_forward, nn::FeedForwardKind::swiglu);
  EXPECT_TRUE(options.model().tied_head);
  EXPECT_EQ(options.model().logit_softcap, 30);
  TrainOptions resumed;
  resumed.adopt(options.configuration());
  EXPECT_EQ(resumed.configuration(), options.configuration());
  auto older = options.configuration();
  for (const char* const name : {"feed-forward", "tied-head", "logit-softcap"}) older.erase(name);
  resumed.adopt(older);
  EXPECT_EQ(resumed.model().feed_forward, nn::FeedForwardKind::gelu);
  EXPECT_FALSE(resumed.model().tied_head);
  EXPECT_EQ(resumed.model().logit_softcap, 0);
  older["tied-head"] = "yes";
  EXPECT_EQ(error_of<FileError>([&] { resumed.adopt(older); }), "[train] the checkpoint's tied-head is malformed: yes");
}

TEST(TrainOptions, ReadLayersAsANumberOrAList) {
  EXPECT_EQ(parse({"--layers", "5"}).model().layers, 5);
  const TrainOptions options = parse({"--layers", "2*window:9,causal+nope", "--context", "64"});
  EXPECT_EQ(options.model().layers, 3);
  EXPECT_NO_THROW(options.check());
  EXPECT_EQ(options.configuration().at("layers"), "2*window:9,causal+nope");
  const auto words = options.arguments();
  EXPECT_EQ(std::ranges::count(words, "--layers=2*window:9,causal+nope"), 1);
  EXPECT_EQ(std::ranges::count_if(words, [](const auto& word) { return word.starts_with("--attention"); }), 0);
  EXPECT_EQ(train_refusal([](auto& o) {
              o.layers = LayerList("causal");
              o.given = {"attention"};
            }),
            "[--attention] --layers already lists the attention of each layer: give one of the two options");
  EXPECT_EQ(train_refusal([](auto& o) {
              o.layers = LayerList("causal");
              o.given = {"window"};
            }),
            "[--window] this option is only for --attention window, global_local, nsa, not for causal");
  EXPECT_EQ(train_refusal([](auto& o) {
              o.layers = LayerList("causal,causal+heads:2");
              o.html = "a";
              o.html_heads = {"0:3", "1:2"};
            }),
            "[train] --html-head must be BLOCK:HEAD from 0:0 to 1:3, but is 1:2");
  TrainOptions random = parse({"--layers", "causal,random", "--seed", "5"});
  EXPECT_EQ(random.configuration().at("attention-seed"), "5");
}

TEST(TrainOptions, EndWithTheUsageCodeOnABadCommandLine) {
  TrainOptions options;
  const auto code = [&](std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train");
    return parse_train_options(static_cast<int>(arguments.size()), arguments.data(), options);
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(code({"--wdith", "3"}), 2);
  EXPECT_EQ(code({"-steps=3"}), 2);
  EXPECT_EQ(code({"--frobnicate"}), 2);
  EXPECT_EQ(code({"--width", "3", "--width", "4"}), 2);
  EXPECT_EQ(code({"--width", "three"}), 2);
  EXPECT_EQ(code({"--preset", "huge"}), 2);
  EXPECT_EQ(code({"--preset", "needle"}), 2);
  EXPECT_EQ(code({"--html-head", "0:0"}), 2);
  EXPECT_EQ(code({"--preset", "tiny", "--resume", "a"}), 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("[train] there is no option --wdith: did you mean --width?\n"));
  EXPECT_THAT(said, HasSubstr("[train] there is no option -steps: did you mean --steps?\n"));
  EXPECT_THAT(said, HasSubstr("[train] there is no option --frobnicate: ./run train --help lists the options\n"));
  EXPECT_THAT(said, HasSubstr("[train] --width is given 2 times\n"));
  EXPECT_THAT(said, HasSubstr("needle is a separate task: ./run recall --preset needle"));
}

TEST(TrainOptions, OnlyRankZeroPrintsHelp) {
  TrainOptions options;
  const char* arguments[] = {"train", "--help"};
  const auto said = [&](const char* rank) {
    setenv("OMPI_COMM_WORLD_RANK", rank, 1);
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(parse_train_options(2, arguments, options), 0);
    unsetenv("OMPI_COMM_WORLD_RANK");
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(said("0"), HasSubstr("Usage: ./run train [OPTIONS]"));
  EXPECT_EQ(said("1"), "");
}

TEST(TrainOptions, RandomAttentionFollowsTheSeed) {
  TrainOptions options = parse({"--attention", "random", "--seed", "5"});
  EXPECT_EQ(options.attention_in_force().pattern(options.context, "train"),
            Pattern::random_blocks(64, 0.25, 5) & Pattern::causal());
  EXPECT_THAT(options.describe_attention(), HasSubstr("seed 5"));
  TrainOptions resumed = parse({});
  resumed.adopt(options.configuration());
  EXPECT_EQ(resumed.attention_in_force().pattern(resumed.context, "train"),
            options.attention_in_force().pattern(options.context, "train"));
  auto older = options.configuration();
  EXPECT_EQ(older.erase("attention-seed"), 1u);
  TrainOptions from_older = parse({});
  from_older.adopt(older);
  EXPECT_EQ(from_older.attention_in_force().pattern(from_older.context, "train"),
            Pattern::random_blocks(64, 0.25, 0) & Pattern::causal())
      << "as it was trained";
  EXPECT_FALSE(parse({}).configuration().contains("attention-seed"));
}

TEST(TrainOptions, RefuseNumbersOutsideTheirType) {
  EXPECT_EQ(parse({"--seed", "18446744073709551615"}).seed, ~std::uint64_t{0});
  EXPECT_EQ(parse({"--segments", "16,64"}).attention.segments, (std::vector<std::int64_t>{16, 64}));
  const std::pair<const char*, const char*> wrong[] = {{"--seed", "-1"},
                                                       {"--seed", "18446744073709551616"},
                                                       {"--seed", "1e3"},
                                                       {"--seed", "one"},
                                                       {"--seed", ""},
                                                       {"--steps", "9223372036854775808"},
                                                       {"--steps", "0x10"},
                                                       {"--segments", "16,4e"},
                                                       {"--segments", "16,9223372036854775808"},
                                                       {"--lr", "1e999"}};
  for (const auto& [name, text] : wrong) {
    TrainOptions options;
    const char* arguments[] = {"train", name, text};
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(parse_train_options(3, arguments, options), 2) << name << " " << text;
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(name)) << text;
  }
}

TEST(TrainOptions, RefuseBadValuesInOneSentence) {
  EXPECT_EQ(train_refusal([](auto& o) { o.attention.attention = "cross"; }),
            "[train] --attention must be one of causal, dense, window, dilated, block_sparse, global_local, strided, "
            "random, ring, delta, gla, nsa, but is cross");
  EXPECT_EQ(train_refusal([](auto& o) { o.attention.window = 0; }), "[train] --window must be at least 1, but is 0");
  EXPECT_EQ(train_refusal([](auto& o) { o.width = 130; }), "[train] --width 130 is not divisible by --heads 4");
  EXPECT_EQ(train_refusal([](auto& o) { o.kv_heads = 3; }), "[train] --heads 4 is not a multiple of --kv-heads 3");
  EXPECT_EQ(train_refusal([](auto& o) { o.feed_forward = "relu"; }),
            "[train] --feed-forward must be gelu, gelu_exact or swiglu, but is relu");
  EXPECT_EQ(train_refusal([](auto& o) { o.logit_softcap = -1; }),
            "[train] --logit-softcap must be 0 or from 1e-30 to 1e30, but is -1");
  EXPECT_THAT(train_refusal([](auto& o) { o.dtype = "f8"; }), HasSubstr("[--dtype] unknown dtype 'f8'"));
  EXPECT_EQ(train_refusal([](auto& o) { o.dtype = "i32"; }),
            "[train] --dtype must be f32, f64, bf16, f16 or auto, but is i32");
  EXPECT_EQ(train_refusal([](auto& o) { o.layers = 0; }), "[train] --layers must be at least 1, but is 0");
  EXPECT_EQ(train_refusal([](auto& o) { o.width = 12; }),
            "[train] --width 12 / --heads 4 must be even, because rotary positions rotate pairs");
  EXPECT_EQ(train_refusal([](auto& o) { o.given = {"segments"}; }),
            "[--segments] this option is only for --attention dilated, not for window");
  EXPECT_EQ(train_refusal([](auto& o) { o.batch = 0; }), "[train] --batch must be at least 1, but is 0");
  EXPECT_EQ(train_refusal([](auto& o) { o.batch = 1000000000; }),
            "[train] --batch must be at most 1048576, but is 1000000000");
  EXPECT_EQ(train_refusal([](auto& o) { o.budget = "0"; }),
            "[train] --budget 0 leaves no memory; without it there is no limit");
  EXPECT_EQ(train_refusal([](auto& o) { o.lr = -1; }), "[train] --lr must be a number from 0 on, but is -1");
  EXPECT_EQ(train_refusal([](auto& o) { o.lr = INFINITY; }), "[train] --lr must be a number from 0 on, but is inf");
  EXPECT_EQ(train_refusal([](auto& o) {
              o.profile = true;
              o.json = "a";
            }),
            "[train] --profile is not a training run and cannot write --json");
  EXPECT_EQ(train_refusal([](auto& o) { o.dropout = 1; }), "[train] --dropout must be in [0, 1), but is 1");
  EXPECT_EQ(train_refusal([](auto& o) { o.sample = -1; }),
            "[train] --steps, --sample, --stop-after and --save-every must not be negative");
  EXPECT_EQ(
      train_refusal([](auto& o) { o.checkpoint = "all"; }),
      "[train] --checkpoint must be none, selective, block, sqrt, revolve, revolve:SLOTS, budget or auto, but is all");
  EXPECT_EQ(train_refusal([](auto& o) { o.tile = -1; }), "[train] --tile must not be negative, but is -1");
  EXPECT_EQ(train_refusal([](auto& o) {
              o.checkpoint = "block";
              o.chunk = 64;
            }),
            "[train] --checkpoint block has no effect with --chunk, which recomputes every chunk anyway");
  EXPECT_EQ(train_refusal([](auto& o) { o.save_every = 5; }), "[train] --save-every needs --save");
  EXPECT_EQ(train_refusal([](auto& o) { o.store_every = 5; }),
            "[train] --store-every needs --chunk, whose states it keeps");
  EXPECT_EQ(train_refusal([](auto& o) { o.accumulate = 0; }), "[train] --accumulate must be at least 1, but is 0");
  EXPECT_EQ(train_refusal([](auto& o) { o.batch = 2, o.accumulate = std::int64_t{1} << 60; }),
            "[train] --accumulate must be at most 524288 with --batch 2, but is 1152921504606846976");
  EXPECT_EQ(train_refusal([](auto& o) { o.metrics = "a.txt"; }),
            "[--metrics] the metrics file must end in .jsonl or .csv: a.txt");
  EXPECT_EQ(train_refusal([](auto& o) { o.other_text = true; }), "[train] --other-text needs --resume");
  EXPECT_EQ(train_refusal([](auto& o) {
              o.device = "sim:1GiB";
              o.save = "x";
            }),
            "[train] --device sim:1GiB has no bytes to save or resume");
  EXPECT_EQ(train_refusal([](auto& o) { o.save = o.json = "a"; }), "[train] --save and --json are both a");
  EXPECT_EQ(train_refusal([](auto& o) { o.html = "-"; }), "[train] --html needs a file, but is -");
  EXPECT_EQ(train_refusal([](auto& o) { o.save = "-"; }), "[train] --save needs a file, but is -");
  EXPECT_EQ(train_refusal([](auto& o) { o.metrics = o.html = "a.csv"; }),
            "[train] --metrics and --html are both a.csv");
  const testing_support::TemporaryFolder folder;
  const std::string book = folder.file("book");
  testing_support::write_bytes(book, "text");
  EXPECT_EQ(train_refusal([&](auto& o) {
              o.text = {"other", book + "=2"};
              o.save = book;
            }),
            "[train] --save " + book + " would replace the text");
  const std::string alias = folder.file("alias"), state = folder.file("state"), absent = folder.file("absent");
  std::filesystem::create_symlink(book, alias);
  testing_support::write_bytes(state, "state");
  const auto replaces = [&](const std::string& text, const std::string& path) {
    return train_refusal([&](auto& o) {
      o.text = {text};
      o.json = path;
    });
  };
  for (const std::string& path : {folder.file("./book"), alias})
    EXPECT_EQ(replaces(book, path), "[train] --json " + path + " would replace the text");
  EXPECT_EQ(replaces(folder.file(""), state), "[train] --json " + state + " would replace the text");
  EXPECT_EQ(train_refusal([&](auto& o) {
              o.resume = state;
              o.json = folder.file("./state");
            }),
            "[train] --json " + folder.file("./state") + " would replace the checkpoint of --resume");
  EXPECT_EQ(train_refusal([&](auto& o) {
              o.json = absent;
              o.html = folder.file("./absent");
            }),
            "[train] --json and --html are both " + folder.file("./absent"));
  EXPECT_EQ(train_refusal([&](auto& o) {
              o.profile = true;
              o.profile_trace = folder.file("./state");
              o.text = {state};
            }),
            "[train] --profile-trace " + folder.file("./state") + " would replace the text");
  TrainOptions devices;
  devices.json = "/dev/null";
  EXPECT_NO_THROW(devices.check());
}

TEST(TrainOptions, PageHeadsAreNamedByBlockAndHead) {
  const TrainOptions several = parse({"--html", "a", "--html-head", "0:3,1:0", "--html-head", "1:2"});
  EXPECT_EQ(several.html_heads, (std::vector<std::string>{"0:3", "1:0", "1:2"}));
  const std::vector<HeadName> heads = parse_heads(several.html_heads);
  ASSERT_EQ(heads.size(), 3u);
  EXPECT_TRUE(heads[0].block == 0 && heads[0].head == 3 && heads[2].block == 1 && heads[2].head == 2);
  for (const char* wrong :
       {"", "1", "1:", ":1", "1:x", "1:1:1", "1:4", "2:0", "-1:0", "0:-1", "0:99999999999999999999"})
    EXPECT_EQ(train_refusal([&](auto& o) {
                o.html_heads = {"0:0", wrong};
              }),
              std::string("[train] --html-head must be BLOCK:HEAD from 0:0 to 1:3, but is ") + wrong);
}

TEST(TrainOptions, AdoptTheConfigurationOfACheckpoint) {
  const TrainOptions saved = parse({"--width", "64", "--lr", "0.0123456789", "--attention", "causal"});
  TrainOptions resumed = parse({"--attention", "causal"});
  resumed.adopt(saved.configuration());
  EXPECT_EQ(resumed.width, 64);
  EXPECT_EQ(resumed.lr, 0.0123456789);
  TrainOptions other = parse({"--width", "32"});
  EXPECT_EQ(error_of<ValueError>([&] { other.adopt(saved.configuration()); }),
            "[train] the checkpoint has another configuration: --width is 64 there, 32 here");
  parse({"--kv-heads", "4"}).adopt(saved.configuration());  // equals the number of heads, as 0 does
  other = parse({"--kv-heads", "2"});
  EXPECT_EQ(error_of<ValueError>([&] { other.adopt(saved.configuration()); }),
            "[train] the checkpoint has another configuration: --kv-heads is 4 there, 2 here");
  TrainOptions longer = parse({"--steps", "7", "--lr", "0.5"});
  longer.adopt(saved.configuration());
  EXPECT_EQ(longer.steps, 7) << "a run may go on for longer";
  EXPECT_EQ(longer.lr, 0.5);
  EXPECT_EQ(longer.width, 64);
  auto older = saved.configuration();
  older.erase("tile");
  TrainOptions from_older = parse({});
  from_older.adopt(older);
  EXPECT_EQ(from_older.width, 64);
  EXPECT_EQ(from_older.tile, 0);
  older.erase("optimizer");
  older.erase("loss-scale");
  from_older = parse({});
  from_older.adopt(older);
  EXPECT_EQ(from_older.optimizer, "adamw") << "there was no other";
  EXPECT_EQ(from_older.loss_scale, "none") << "there was no scaling";
  from_older = parse({"--dtype", "auto"});
  auto half = saved.configuration();
  half["dtype"] = "bf16";
  from_older.adopt(half);
  EXPECT_EQ(from_older.dtype, "bf16") << "auto agrees with any";
  from_older = parse({"--optimizer", "muon"});
  EXPECT_EQ(error_of<ValueError>([&] { from_older.adopt(older); }),
            "[train] the checkpoint has another configuration: --optimizer is adamw there, muon here");
  auto broken = saved.configuration();
  broken["layers"] = "two";
  EXPECT_EQ(error_of<FileError>([&] { TrainOptions().adopt(broken); }),
            "[train] the checkpoint's layers is malformed: two");
  broken.erase("layers");
  EXPECT_EQ(error_of<FileError>([&] { TrainOptions().adopt(broken); }), "[train] the checkpoint has no layers");
  broken = saved.configuration();
  broken["heads"] = "";
  EXPECT_EQ(error_of<FileError>([&] { TrainOptions().adopt(broken); }),
            "[train] the checkpoint's heads is malformed: ");
  EXPECT_EQ(error_of<FileError>([&] {
              TrainOptions().adopt({{"text", "1234"}});
            }),
            "[train] the checkpoint has no model configuration, unlike those of ./run train: load it in the program "
            "that saved it");
}

TEST(DefaultText, IsTheSourceOfEigen) {
  const nn::Corpus corpus = nn::read_corpus({default_text()}, 1);
  EXPECT_GT(corpus.files, 100);
  const auto bytes = corpus.texts[0].train.read(0, corpus.texts[0].train.size());
  const std::string text(bytes.begin(), bytes.end());
  EXPECT_NE(text.find("namespace Eigen"), std::string::npos);
}

}  // namespace
}  // namespace poolgrad::examples
