// Compares the sampling rules with their definitions, and a writer with a cache with one without.
#include "nn/training/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "allocator/base/random.h"
#include "autograd/operators.h"
#include "tensor/creation.h"
#include "tensor/grad_mode.h"
#include "tests/tensor/support.h"

namespace poolgrad::nn {
namespace {

using ::testing::HasSubstr;
using testing_support::error_of;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Returns whether a precedes b in the order of probability.
bool comes_first(const std::vector<double>& values, std::size_t a, std::size_t b) {
  return values[a] > values[b] || (values[a] == values[b] && a < b);
}

std::vector<double> softmax_of(const std::vector<double>& logits) {
  std::vector<double> result;
  double total = 0;
  for (const double logit : logits) total += result.emplace_back(std::exp(logit));
  for (double& p : result) p /= total;
  return result;
}

/// Applies each rule by its definition: a token stays if its rank is below k and the tokens before it have a total
/// probability below p.
std::vector<double> by_definition(std::vector<double> logits, const std::vector<std::int64_t>& recent,
                                  const SamplerOptions& o) {
  for (std::size_t token = 0; token < logits.size(); ++token) {
    bool came = false;
    for (std::size_t back = 1; back <= recent.size() && back <= static_cast<std::size_t>(o.penalty_window); ++back)
      came |= recent[recent.size() - back] == static_cast<std::int64_t>(token);
    if (came) logits[token] *= logits[token] > 0 ? 1 / o.repetition_penalty : o.repetition_penalty;
  }
  for (double& logit : logits) logit /= o.temperature;
  const auto without = [&](const auto& leaves) {
    const std::vector<double> before = logits;
    for (std::size_t i = 0; i < logits.size(); ++i)
      if (leaves(before, i)) logits[i] = -infinity;
  };
  if (o.top_k > 0)
    without([&](const std::vector<double>& values, std::size_t i) {
      std::int64_t rank = 0;
      for (std::size_t j = 0; j < values.size(); ++j) rank += comes_first(values, j, i);
      return rank >= o.top_k;
    });
  if (o.top_p < 1) {
    const std::vector<double> p = softmax_of(logits);
    without([&](const std::vector<double>& values, std::size_t i) {
      double before = 0;
      for (std::size_t j = 0; j < values.size(); ++j) before += comes_first(values, j, i) ? p[j] : 0.0;
      return before >= o.top_p;
    });
  }
  return softmax_of(logits);
}

void expect_by_definition(const SamplerOptions& options, const std::vector<double>& logits,
                          const std::vector<std::int64_t>& recent = {}) {
  const std::vector<double> found = Sampler(options).probabilities(logits, recent);
  const std::vector<double> expected = by_definition(logits, recent, options);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-12) << "token " << i;
    EXPECT_EQ(found[i] == 0, expected[i] == 0) << "token " << i;
  }
}

const std::vector<double> some_logits = {0.3, -1.0, 2.0, 0.3, 1.1, -4.0, 2.0};

TEST(Sampler, TemperatureDividesTheLogits) {
  for (const double temperature : {0.1, 0.8, 1.0, 5.0}) expect_by_definition({.temperature = temperature}, some_logits);
}

TEST(Sampler, TemperatureZeroTakesTheFirstMostProbableToken) {
  Sampler sampler({.temperature = 0.0});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(sampler.next(some_logits), 2);
  EXPECT_EQ(sampler.probabilities(some_logits), (std::vector<double>{0, 0, 1, 0, 0, 0, 0}));
  const std::vector<std::int64_t> recent{2};
  EXPECT_EQ(Sampler({.repetition_penalty = 2.0, .temperature = 0.0}).next(some_logits, recent), 6) << "after penalties";
}

TEST(Sampler, TopKKeepsTheFirstOfEqualTokens) {
  for (const std::int64_t k : {1, 2, 4, 5, 7, 100}) expect_by_definition({.temperature = 1.0, .top_k = k}, some_logits);
  const std::vector<double> p = Sampler({.temperature = 1.0, .top_k = 4}).probabilities(some_logits);
  EXPECT_GT(p[0], 0.0);
  EXPECT_EQ(p[3], 0.0) << "equal to token 0, and behind it";
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachP) {
  for (const double p : {1e-9, 0.3, 0.39, 0.5, 0.9, 0.999})
    expect_by_definition({.temperature = 1.0, .top_p = p}, some_logits);
  const std::vector<double> quarters = {0, 0, 0, 0};
  const std::vector<double> half = Sampler({.temperature = 1.0, .top_p = 0.5}).probabilities(quarters);
  EXPECT_EQ(half, (std::vector<double>{0.5, 0.5, 0, 0})) << "two quarters reach a half";
}

TEST(Sampler, PenalizesRecentTokensOnceForEitherSign) {
  const std::vector<std::int64_t> recent{1, 4, 4, 2, 5};
  const SamplerOptions options{.repetition_penalty = 1.5, .penalty_window = 4, .temperature = 1.0};
  expect_by_definition(options, some_logits, recent);
  const std::vector<double> plain = Sampler({.temperature = 1.0}).probabilities(some_logits);
  const std::vector<double> found = Sampler(options).probabilities(some_logits, recent);
  EXPECT_NEAR(found[1] / found[0], plain[1] / plain[0], 1e-12) << "token 1 is out of the window";
  EXPECT_NEAR(found[5] / found[0], std::exp(-6.0) / std::exp(0.3), 1e-12);
  EXPECT_NEAR(found[4] / found[0], std::exp(1.1 / 1.5) / std::exp(0.3), 1e-12);
}

TEST(Sampler, IgnoresRecentTokensWithoutALogit) {
  const Sampler sampler({.repetition_penalty = 2.0, .temperature = 1.0});
  const std::vector<std::int64_t> beyond{-1, 0, 2, 299}, within{0};
  EXPECT_EQ(sampler.probabilities({1.0, 2.0}, beyond), sampler.probabilities({1.0, 2.0}, within));
}

TEST(Sampler, AppliesAllRulesInTheirOrder) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return random() % n; };
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<double> logits(1 + below(40));
    for (double& logit : logits) logit = 0.25 * (static_cast<double>(below(33)) - 16);  // ties
    std::vector<std::int64_t> recent(below(20));
    for (std::int64_t& token : recent) token = static_cast<std::int64_t>(below(logits.size()));
    expect_by_definition({.repetition_penalty = 0.5 + 0.125 * static_cast<double>(below(16)),
                          .penalty_window = static_cast<std::int64_t>(below(12)),
                          .temperature = 0.3 + 0.1 * static_cast<double>(below(20)),
                          .top_k = static_cast<std::int64_t>(below(45)),
                          .top_p = 0.0501 + 0.1 * static_cast<double>(below(9))},
                         logits, recent);
  }
}

TEST(Sampler, DrawNUsesRandomNumberNOfTheSeed) {
  Sampler sampler({.temperature = 1.0, .top_k = 5, .seed = 9});
  const std::vector<double> p = sampler.probabilities(some_logits);
  for (std::uint64_t n = 0; n < 500; ++n) {
    const auto token = static_cast<std::size_t>(sampler.next(some_logits));
    double below = 0;
    for (std::size_t i = 0; i < token; ++i) below += p[i];
    const double unit = random_unit(9, n);
    EXPECT_GE(unit, below - 1e-12) << n;
    EXPECT_LT(unit, below + p[token] + 1e-12) << n;
  }
}

TEST(Sampler, RefusesInvalidOptions) {
  const auto refusal = [](const SamplerOptions& options) {
    return error_of<ValueError>([&] { Sampler sampler(options); });
  };
  EXPECT_EQ(refusal({.temperature = -1}), "[sampler] temperature must be a finite number from 0 on, but is -1");
  EXPECT_EQ(refusal({.top_k = -1}), "[sampler] top_k must be 0 or more, but is -1");
  EXPECT_EQ(refusal({.top_p = 0}), "[sampler] top_p must be in (0, 1], but is 0");
  EXPECT_EQ(refusal({.top_p = 1.5}), "[sampler] top_p must be in (0, 1], but is 1.5");
  EXPECT_EQ(refusal({.repetition_penalty = 0}),
            "[sampler] repetition_penalty must be a finite number above 0, but is 0");
  EXPECT_EQ(refusal({.penalty_window = -1}), "[sampler] penalty_window must be 0 or more, but is -1");
  Sampler sampler;
  EXPECT_THAT(error_of<ValueError>([&] { sampler.next({-infinity, -infinity}); }), HasSubstr("not finite"));
  EXPECT_THAT(error_of<ValueError>([&] { sampler.next({}); }), HasSubstr("not finite"));
  EXPECT_EQ(sampler.next({-infinity, 3.0}), 1) << "a token may be impossible";
}

TEST(Sampler, NamesTheTokenWithANaNLogit) {
  for (const SamplerOptions& options : {SamplerOptions{}, SamplerOptions{.temperature = 0}, SamplerOptions{.top_k = 1},
                                        SamplerOptions{.repetition_penalty = 2}}) {
    Sampler sampler(options);
    sampler.next({0.5, 1.5});
    const std::vector<std::int64_t> recent{1, 0, 1, 1};
    for (const std::vector<double>& logits : {std::vector{0.5, 1.5, std::nan("")}, {9.0, -infinity, std::nan("")}})
      for (const auto& draw : {std::function<void()>([&] { sampler.next(logits, recent); }),
                               std::function<void()>([&] { sampler.probabilities(logits, recent); })})
        EXPECT_EQ(error_of<ValueError>(draw), "[sampler] the logit of token 2 is NaN, after 4 tokens, in draw 1");
    EXPECT_EQ(error_of<ValueError>([&] {
                sampler.next({infinity, 0.0}, recent);
              }),
              "[sampler] the largest logit is not finite, after 4 tokens, in draw 1");
  }
}

/// The mean of all positions so far, so every output depends on all inputs. `fails_in` makes a later call fail.
class MeanSoFar : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState* state) override {
    if (fails_in > 0 && --fails_in == 0) throw Error("[mean] as told");
    SequenceState own;
    if (!state) state = &own;
    const std::int64_t seen = state->length, length = x.size(1);
    Tensor sums = cumsum(x, 1);
    if (seen > 0) sums = sums + state->tensors.at(0);
    state->tensors = {slice(sums, 1, length - 1, length)};
    state->length += length;
    std::vector<float> counts;
    for (std::int64_t i = 0; i < length; ++i) counts.push_back(static_cast<float>(seen + i + 1));
    return sums / from_data(counts, {1, length, 1});
  }

  inline static int fails_in = 0;  // calls
};

/// Two blocks of this mixer, with an untied head of nonzero weights.
struct WritingModel {
  explicit WritingModel(Positions positions = Positions::rope)
      : model({.context = 24, .layers = 2, .width = 16, .positions = positions},
              [](const auto&...) { return std::make_unique<MeanSoFar>(); }, {.generator = &generator}) {
    const NoGradGuard no_grad;
    for (auto& [name, parameter] : model.named_parameters())
      if (name == "head.weight") parameter.copy_from(randn(parameter.shape(), parameter.options(), generator));
    model.eval();
  }

  Generator generator{5};
  LanguageModel model;
};

/// Returns the continuation without a cache: it reads the whole context again for every byte, and its newer half when
/// the context is full.
std::string without_a_cache(LanguageModel& model, const std::string& prompt, std::int64_t bytes) {
  const NoGradGuard no_grad;
  const std::int64_t context = model.config().context;
  std::string text = prompt, seen = prompt;
  for (std::int64_t i = 0; i < bytes; ++i) {
    if (std::ssize(seen) > context) seen = seen.substr(seen.size() - static_cast<std::size_t>(context / 2));
    std::vector<std::int64_t> tokens;
    for (const char c : seen) tokens.push_back(static_cast<unsigned char>(c));
    auto state = model.new_state();
    const std::vector<double> row =
        select(select(model.logits(from_data(tokens, {1, std::ssize(seen)}), &state), 1, -1), 0, 0).to_vector<double>();
    const auto best = static_cast<char>(std::max_element(row.begin(), row.end()) - row.begin());
    text += best;
    seen += best;
  }
  return text.substr(prompt.size());
}

std::string written(TextWriter& writer, const std::string& prompt, int bytes) {
  writer.read(prompt);
  std::string text;
  for (int i = 0; i < bytes; ++i) text += writer.write();
  return text;
}

TEST(TextWriter, WritesLikeAFullRereadBeyondTheContext) {
  for (const Positions positions : {Positions::rope, Positions::learned})
    for (const std::string& prompt : {std::string("a"), std::string(24, 'b'), std::string(61, 'c')}) {
      WritingModel with(positions), without(positions);
      TextWriter writer(with.model, {.temperature = 0.0});
      EXPECT_EQ(written(writer, prompt, 60), without_a_cache(without.model, prompt, 60)) << prompt.size();
      EXPECT_EQ(writer.restarts(), prompt.size() == 1 ? 3 : 5) << "every 13 bytes, once the 24 are full";
      EXPECT_LE(writer.positions(), 24);
      EXPECT_EQ(writer.cache_bytes(), 2 * 16 * sizeof(float)) << "a mean of each block";
    }
}

/// The same mixer for whole sequences only.
class MeanOfWhole : public SequenceMixer {
 public:
  Tensor forward(const Tensor& x, SequenceState* state) override {
    if (state) throw ValueError("[mean] takes no state");
    SequenceState own;
    return mean_.forward(x, &own);
  }
  bool continues() const override { return false; }

 private:
  MeanSoFar mean_;
};

TEST(TextWriter, RereadsForModelsWithoutState) {
  WritingModel with;
  Generator generator(5);
  int made = 0;  // one block of either kind
  LanguageModel without(with.model.config(),
                        [&](const auto&...) -> std::unique_ptr<SequenceMixer> {
                          if (made++ == 0) return std::make_unique<MeanSoFar>();
                          return std::make_unique<MeanOfWhole>();
                        },
                        {.generator = &generator});
  without.load(with.model.named_parameters());
  without.eval();
  EXPECT_TRUE(with.model.continues());
  EXPECT_FALSE(without.continues());
  TextWriter cached(with.model, {.temperature = 0.0}), writer(without, {.temperature = 0.0});
  EXPECT_EQ(written(writer, "ab", 60), written(cached, "ab", 60));
  EXPECT_EQ(writer.restarts(), cached.restarts());
  EXPECT_EQ(writer.positions(), 0);
  EXPECT_EQ(writer.cache_bytes(), 0u);
}

TEST(TextWriter, ReadsMoreTextAndStartsAnew) {
  WritingModel small;
  TextWriter writer(small.model, {.temperature = 0.0}), other(small.model, {.temperature = 0.0});
  const std::string first = written(writer, "ab", 3), second = written(writer, "cd", 3);
  EXPECT_EQ(second, without_a_cache(small.model, "ab" + first + "cd", 3));
  writer.start_anew();
  EXPECT_EQ(writer.positions(), 0);
  EXPECT_EQ(error_of<ValueError>([&] { writer.write(); }), "[text_writer] there is no text to continue");
  EXPECT_EQ(written(writer, "ab", 3), first);
}

TEST(TextWriter, PenalizesTheLastTokensBeyondAFullContext) {
  WritingModel writing;
  constexpr int window = 20;  // more than the space left in a context of 24 after it is read again
  TextWriter writer(writing.model, {.repetition_penalty = 1e6, .penalty_window = window, .temperature = 0});
  const std::string text = "ab" + written(writer, "ab", 60);
  ASSERT_GT(writer.restarts(), 1);
  for (std::size_t i = 2; i < text.size(); ++i)
    EXPECT_EQ(text.substr(i > window ? i - window : 0, std::min<std::size_t>(i, window)).find(text[i]), text.npos) << i;
}

TEST(TextWriter, ContinuesAfterAFailure) {
  WritingModel small;
  TextWriter undisturbed(small.model), writer(small.model);
  const std::string expected = written(undisturbed, "abc", 8);
  std::string text = written(writer, "abc", 4);
  MeanSoFar::fails_in = 2;  // the second block of the next byte
  EXPECT_EQ(error_of<Error>([&] { writer.write(); }), "[mean] as told");
  for (int i = 0; i < 4; ++i) text += writer.write();
  EXPECT_EQ(text, expected);
}

TEST(TextWriter, ContinuesAfterAFailureAtTheEndOfTheContext) {
  WritingModel small;
  TextWriter undisturbed(small.model), writer(small.model);
  const std::string prompt(25, 'b'), expected = written(undisturbed, prompt, 8);
  writer.read(prompt);
  MeanSoFar::fails_in = 2;
  EXPECT_EQ(error_of<Error>([&] { writer.write(); }), "[mean] as told");
  EXPECT_EQ(writer.restarts(), 0) << "nothing was cut";
  EXPECT_EQ(written(writer, "", 8), expected);
  EXPECT_EQ(writer.restarts(), undisturbed.restarts());
}

}  // namespace
}  // namespace poolgrad::nn
